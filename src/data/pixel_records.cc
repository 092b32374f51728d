#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "dba/bytes/errors.h"
#include "folder_listing.h"
#include "readers.h"

namespace dba::data {
namespace {

constexpr std::size_t kPixels = 32 * 32;
constexpr std::uint64_t kBatchRecords = 10'000;
constexpr std::size_t kBuffer = std::size_t{256} << 10;

// As Long-Range Arena makes CIFAR-10 grey: values divided down to 0 … 1, weighted, and 255.5 times the sum cut to an
// integer, all in single precision.
std::uint8_t grey_of(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  const float sum = static_cast<float>(red) / 255.0f * 0.2989f + static_cast<float>(green) / 255.0f * 0.5870f +
                    static_cast<float>(blue) / 255.0f * 0.1140f;
  return static_cast<std::uint8_t>(sum * 255.5f);
}

// Records of a label byte and `planes` × 1,024 pixels, from one source or from several files one after the other.
class PixelRecords : public Reader {
 public:
  PixelRecords(std::unique_ptr<ByteSource> source, const std::string& file, LabelUse labels, std::size_t planes,
               std::size_t classes)
      : Reader(file, labels), source_(std::move(source)), planes_(planes), classes_(classes) {}
  PixelRecords(std::vector<std::filesystem::path> files, const std::string& folder, LabelUse labels, std::size_t planes,
               std::size_t classes)
      : PixelRecords(nullptr, folder, labels, planes, classes) {
    files_ = std::move(files);
  }

  // The batches of CIFAR-10 are known to the record.
  std::string doubt() const override {
    std::string batches;
    for (const std::filesystem::path& file : files_) {
      const std::uint64_t records = size_of(file) / (1 + planes_ * kPixels);
      if (records != kBatchRecords)
        batches += (batches.empty() ? "" : ", ") + std::to_string(records) + " in " + file.filename().string();
    }
    return batches.empty()
               ? ""
               : "other than 10,000 records in its batches: " + batches + "; unpack cifar-10-binary.tar.gz again";
  }

 protected:
  bool read(Example& example) override {
    const std::size_t size = 1 + planes_ * kPixels;
    while (!fill(size)) {
      const std::size_t left = end_ - begin_;
      begin_ = end_;
      if (left > 0) {
        begin_record(++record_);
        fail("the file ends after " + std::to_string(left) + " of the " + std::to_string(size) + " bytes of record " +
             std::to_string(record_) +
             "; it is cut short or of another kind: fetch it again, or name its format with data.format");
      }
      if (source_ && record_ == 0) {
        record_ = 1;  // told once
        fail("is empty; fetch or generate it again");
      }
      if (next_file_ == files_.size())
        return false;
      source_ = open_source(files_[next_file_]);
      enter(files_[next_file_++].string());
      record_ = 0;
    }
    const auto* const record = reinterpret_cast<const std::uint8_t*>(buffer_.data() + begin_);
    begin_ += size;
    begin_record(++record_);
    if (record[0] >= classes_) {
      fail("record " + std::to_string(record_) + " has the label " + std::to_string(record[0]) + ", expected 0 to " +
           std::to_string(classes_ - 1) + "; the file is damaged or its records are not " + std::to_string(size) +
           " bytes long: fetch or generate it again");
    }
    example.content = Content::integers;
    example.label = std::to_string(record[0]);
    example.integers.resize(kPixels);
    const std::uint8_t* const pixels = record + 1;
    for (std::size_t i = 0; i < kPixels; ++i)
      example.integers[i] = planes_ == 1 ? pixels[i] : grey_of(pixels[i], pixels[kPixels + i], pixels[2 * kPixels + i]);
    return true;
  }

 private:
  // Whether `size` bytes lie in the buffer; false at the end of the source.
  bool fill(std::size_t size) {
    if (!source_)
      return false;
    while (end_ - begin_ < size) {
      if (buffer_.empty())
        buffer_.resize(kBuffer);
      std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
                buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
      end_ -= begin_;
      begin_ = 0;
      const std::size_t count = source_->read(std::span(buffer_).subspan(end_));
      end_ += count;
      if (count == 0)
        return false;
    }
    return true;
  }

  std::unique_ptr<ByteSource> source_;
  std::vector<std::filesystem::path> files_;
  std::size_t next_file_ = 0;
  std::size_t planes_;
  std::size_t classes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t record_ = 0;  // of the present file
};

// Whether there is a label wherever a record of that size would begin.
bool labels_at(std::string_view beginning, std::size_t record) {
  if (beginning.empty())
    return false;
  for (std::size_t place = 0; place < beginning.size(); place += record) {
    if (static_cast<unsigned char>(beginning[place]) >= kCifarClasses)
      return false;
  }
  return true;
}

struct GreyTask {
  std::string_view file;
  std::size_t classes;
};

constexpr std::array<GreyTask, 3> kGreyTasks = {
    {{"cifar10_gray_train.bin", kCifarClasses}, {"cifar10_gray_test.bin", kCifarClasses}, {"pathfinder32.bin", 2}}};

std::size_t grey_classes(const std::filesystem::path& file) {
  const auto found = std::ranges::find(kGreyTasks, file.filename().string(), &GreyTask::file);
  constexpr std::size_t kBytes = 256;
  return found == kGreyTasks.end() ? kBytes : found->classes;
}

constexpr std::array kBatches = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                                 "data_batch_5.bin"};
constexpr std::string_view kTestBatch = "test_batch.bin";

}  // namespace

bool is_cifar10(std::string_view beginning) {
  return labels_at(beginning, kCifarRecord);
}

bool is_grey(std::string_view beginning) {
  return labels_at(beginning, kGreyRecord);
}

bool is_cifar10_name(std::string_view name) {
  return name == kTestBatch || std::ranges::find(kBatches, name) != kBatches.end();
}

bool is_grey_name(std::string_view name) {
  return std::ranges::find(kGreyTasks, name, &GreyTask::file) != kGreyTasks.end();
}

std::unique_ptr<Reader> open_cifar10(std::unique_ptr<ByteSource> source, const std::string& file,
                                     const ReaderOptions& options) {
  return std::make_unique<PixelRecords>(std::move(source), file, options.labels, 3, kCifarClasses);
}

std::unique_ptr<Reader> open_grey(std::unique_ptr<ByteSource> source, const std::string& file,
                                  const ReaderOptions& options) {
  return std::make_unique<PixelRecords>(std::move(source), file, options.labels, 1, grey_classes(file));
}

bool is_cifar10_folder(const std::filesystem::path& folder) {
  for (const char* const name : kBatches) {
    if (is_file(folder / name))
      return true;
  }
  return is_file(folder / kTestBatch);
}

std::unique_ptr<Reader> open_cifar10_folder(const std::filesystem::path& folder, const ReaderOptions& options) {
  std::vector<std::filesystem::path> files;
  for (const char* const name : kBatches) {
    if (!is_file(folder / name)) {
      throw bytes::FormatError(folder.string() + ": " + name +
                               " is missing; the training part of CIFAR-10 is data_batch_1.bin to data_batch_5.bin: "
                               "unpack cifar-10-binary.tar.gz again");
    }
    files.push_back(folder / name);
  }
  return std::make_unique<PixelRecords>(std::move(files), folder.string(), options.labels, 3, kCifarClasses);
}

}  // namespace dba::data
