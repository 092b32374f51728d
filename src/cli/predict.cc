#include "cli/predict.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <sstream>

#include "bytes/count.h"
#include "cli/exit_status.h"
#include "dba/bytes/atomic_write.h"
#include "dba/data/formats.h"
#include "dba/data/json_text.h"
#include "dba/run/signals.h"
#include "dba/train/evaluate.h"

namespace dba::cli {
namespace {

struct PredictArguments {
  std::filesystem::path run;
  std::string input = "-";
  std::string output = "-";
  std::string format;
  std::string output_format;
  std::string device = "auto";
  std::size_t limit = 0;
};

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

/// Lines of predictions, as JSON objects or as a table; `write` takes them in pieces.
class Writer {
 public:
  using Write = std::function<void(const std::string&)>;

  Writer(Write write, const data::LabelSet& labels, bool csv) : write_(std::move(write)), labels_(labels), csv_(csv) {
    lines_.precision(9);
    if (csv_) {
      lines_ << "label";
      for (const auto& name : labels_.names()) {
        lines_ << "," << csv_field("p(" + name + ")");
      }
      lines_ << "\n";
    }
  }
  void add(std::int64_t predicted, std::span<const float> probabilities) {
    const auto& name = labels_.name(static_cast<std::size_t>(predicted));
    if (csv_) {
      lines_ << csv_field(name);
      for (const auto p : probabilities) {
        lines_ << "," << p;
      }
    } else {
      lines_ << "{\"label\": " << data::json_quoted(name) << ", \"probabilities\": {";
      for (std::size_t c = 0; c < probabilities.size(); ++c) {
        lines_ << (c == 0 ? "" : ", ") << data::json_quoted(labels_.name(c)) << ": " << probabilities[c];
      }
      lines_ << "}}";
    }
    lines_ << "\n";
  }
  void flush() {
    write_(lines_.str());
    lines_.str("");
  }

 private:
  Write write_;
  std::ostringstream lines_;
  const data::LabelSet& labels_;
  bool csv_;
};

/// Classifies what the reader still has, a batch at a time, and tells of what was put right on the way.
void predict(train::Model& model, at::Device device, data::Reader& reader, std::size_t limit, Writer& writer) {
  const auto& plan = model.plan();
  std::vector<data::Encoded> waiting;
  const auto flush = [&] {
    if (!waiting.empty()) {
      const auto batch = train::collate(waiting, plan.encoding, plan.statistics()).to(device);
      const auto logits = train::infer(model, batch, device);
      const auto probabilities = logits.softmax(1).cpu().contiguous();
      const auto predicted = logits.argmax(1).cpu();
      const auto classes = static_cast<std::size_t>(probabilities.size(1));
      for (std::int64_t i = 0; i < batch.count(); ++i) {
        writer.add(predicted[i].item<std::int64_t>(),
                   {probabilities.const_data_ptr<float>() + static_cast<std::size_t>(i) * classes, classes});
      }
      waiting.clear();
    }
    writer.flush();
  };
  std::size_t cut = 0, count = 0;
  data::Example example;
  while (run::StopSignals::received() == 0 && (limit == 0 || count < limit) && reader.next(example)) {
    data::Encoded encoded;
    plan.encoding.encode(example, reader.place(), encoded);
    cut += encoded.cut ? 1 : 0;
    ++count;
    waiting.push_back(std::move(encoded));
    if (static_cast<std::int64_t>(waiting.size()) >= plan.config.batch.size) {
      flush();
    }
  }
  flush();
  if (const auto& repairs = reader.repairs(); repairs.missing_values > 0) {
    std::cerr << "dba predict: " << bytes::counted(repairs.missing_values, "missing value") << " in " << repairs.series
              << " series filled; channels without any value: " << repairs.empty_channels << "\n";
  }
  if (cut > 0) {
    std::cerr << "dba predict: " << cut << " of " << bytes::counted(count, "sequence")
              << " cut: longer than the model takes\n";
  }
}

/// Whether lines go out as they come: to standard output, a device or a pipe. A file appears when all of it is there.
bool streams(const std::string& output) {
  std::error_code none;
  const auto status = std::filesystem::status(output, none);
  const bool other = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
                     !std::filesystem::is_directory(status);
  // /dev/stdout may be a file that a shell has opened.
  return output == "-" || output.starts_with("/dev/") || other;
}

void write_predictions(const PredictArguments& arguments) {
  auto model = train::Model::load(arguments.run);
  const auto device = train::choose_device(arguments.device);
  model.module().to(device);
  model.module().eval();
  auto reading = train::reader_options(model.plan().config.data);
  reading.labels = data::LabelUse::ignored;
  reading.format = arguments.format;
  const auto reader = data::make_reader(arguments.input, reading);
  const auto predict_into = [&](Writer::Write write) {
    const bool csv =
        arguments.output_format.empty() ? arguments.output.ends_with(".csv") : arguments.output_format == "csv";
    Writer writer(std::move(write), model.plan().encoding.labels, csv);
    predict(model, device, *reader, arguments.limit, writer);
  };
  if (!streams(arguments.output)) {
    std::error_code missing;
    if (std::filesystem::equivalent(arguments.input, arguments.output, missing)) {
      throw CLI::ValidationError("--output", "is the input file; choose another");
    }
    const auto folder = std::filesystem::path(arguments.output).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder, missing)) {
      throw CLI::ValidationError("--output", "there is no folder " + folder.string() + "; make it, or choose another");
    }
    const run::StopSignals signals;
    bytes::atomic_write(arguments.output, [&](bytes::OutputFile& file) {
      predict_into([&](const std::string& lines) { file.write(std::as_bytes(std::span(lines))); });
      if (const int signal = run::StopSignals::received(); signal != 0) {
        std::cerr << "dba predict: stopped by a signal; " << arguments.output << " was not written\n";
        throw ExitStatus{run::StopSignals::exit_code(signal)};
      }
    });
    return;
  }
  std::ofstream device_or_pipe;
  if (arguments.output != "-") {
    device_or_pipe.open(arguments.output);
  }
  std::ostream& out = arguments.output == "-" ? std::cout : device_or_pipe;
  predict_into([&](const std::string& lines) {
    if (!(out << lines << std::flush)) {
      throw std::runtime_error("could not write the predictions to " +
                               (arguments.output == "-" ? "standard output" : arguments.output));
    }
  });
}

}  // namespace

void add_predict(CLI::App& app) {
  auto* command = app.add_subcommand("predict", "Classify new sequences");
  command->footer(
      "Examples:\n"
      "  dba predict runs/first --input new.jsonl --output predictions.csv\n"
      "  echo '{\"text\": \"[MAX 2 [MIN 4 7 ] 1 ]\"}' | dba predict runs/first\n"
      "  dba predict runs/gestures --format ts < new.ts          series without labels\n"
      "One line per sequence, in order: the label and the probability of every class.");
  auto arguments = std::make_shared<PredictArguments>();
  command->add_option("run", arguments->run, "a run's folder, or a model.safetensors")->required();
  command->add_option("--input", arguments->input, "file, or - for standard input (JSONL, or what --format names)")
      ->capture_default_str();
  command->add_option("--output", arguments->output, "file, or - for standard output")->capture_default_str();
  command->add_option("--format", arguments->format, "format of the input, where the extension does not tell");
  command->add_option("--output-format", arguments->output_format, "jsonl or csv; by default as the file's name says")
      ->check(CLI::IsMember({"jsonl", "csv"}));
  command->add_option("--limit", arguments->limit, "stop after so many sequences; 0: all");
  command->add_option("--device", arguments->device, "auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->callback([arguments] { write_predictions(*arguments); });
}

}  // namespace dba::cli
