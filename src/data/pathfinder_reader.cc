#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "dba/bytes/errors.h"
#include "dba/data/pathfinder.h"
#include "folder_listing.h"
#include "line_reader.h"
#include "png.h"
#include "readers.h"
#include "unreadable.h"

namespace dba::data {
namespace {

// What one line of a metadata file says: "imgs/0 sample_12.png 12 1 1.0 14 …".
struct Sample {
  std::uint32_t file;  // of the metadata, in the order read
  std::uint32_t line;
  std::string image;  // below the folder
  char label;
};

std::string_view next_field(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  const std::string_view field = rest.substr(0, rest.find_first_of(" \t"));
  rest.remove_prefix(field.size());
  return field;
}

// The metadata files by number: 0.npy, 1.npy, 2.npy, … 10.npy.
std::vector<std::filesystem::path> metadata_files(const std::filesystem::path& folder) {
  std::vector<std::pair<std::uint64_t, std::string>> numbered;
  for (std::string& name : names_in(folder)) {
    std::uint64_t number = 0;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), number);
    if (name.ends_with(".npy") && result.ec == std::errc{})
      numbered.emplace_back(number, std::move(name));
  }
  std::ranges::sort(numbered);
  std::vector<std::filesystem::path> files;
  for (const auto& [number, name] : numbered)
    files.push_back(folder / name);
  return files;
}

class PathfinderReader : public Reader {
 public:
  PathfinderReader(const std::filesystem::path& folder, const ReaderOptions& options)
      : Reader(folder.string(), options.labels), folder_(folder), side_(options.side) {
    if (side_ == 0 && std::ranges::find(folder, "pathfinder32") != folder.end())
      side_ = kPathfinderSide;
    for (const char* const name : {"metadata", "imgs"}) {
      if (!is_folder(folder / name)) {
        throw bytes::FormatError(folder.string() + ": the folder " + name +
                                 " is missing; a set of Pathfinder has imgs/N/sample_K.png and metadata/N.npy: unpack "
                                 "the archive again");
      }
    }
    metadata_ = metadata_files(folder / "metadata");
    for (std::uint32_t i = 0; i < metadata_.size(); ++i)
      list_samples(i, options.longest_record);
    if (samples_.empty())
      throw bytes::FormatError((folder / "metadata").string() +
                               ": no file N.npy names an image; unpack the archive again, or generate the set anew");
  }

  std::optional<std::size_t> total() const override {
    return samples_.size();
  }

  // A generator that was stopped has drawn pictures that no metadata name yet.
  std::string doubt() const override {
    std::size_t pictures = 0;
    for (const std::string& subfolder : names_in(folder_ / "imgs")) {
      if (is_folder(folder_ / "imgs" / subfolder))
        pictures += static_cast<std::size_t>(std::ranges::count_if(
            names_in(folder_ / "imgs" / subfolder), [](const std::string& name) { return name.ends_with(".png"); }));
    }
    if (pictures <= samples_.size())
      return "";
    return std::to_string(pictures) + " pictures, of which the metadata name " + std::to_string(samples_.size()) +
           "; whatever made the folder was stopped before its end: unpack or generate it anew";
  }

 protected:
  bool read(Example& example) override {
    if (next_ == samples_.size())
      return false;
    const Sample& sample = samples_[next_++];
    enter(metadata_[sample.file].string());
    begin_record(sample.line);
    const std::filesystem::path path = folder_ / sample.image;
    if (!is_file(path))
      fail("names " + path.string() + ", which is missing; unpack the archive again");
    try {
      read_file(path);
    } catch (const bytes::FileError& error) {
      fail(with_remedy(error));  // of one picture: the others can be read
    }
    const Picture picture = read_png(file_, place() + ": " + path.string());
    if (picture.channels != 1)
      fail(path.string() + " has " + std::to_string(picture.channels) + " channels, expected grey; convert it");
    if (picture.width < kPathfinderSide || picture.height < kPathfinderSide) {
      fail(path.string() + " is " + std::to_string(picture.width) + " × " + std::to_string(picture.height) +
           " pixels, expected 32 × 32 at least; fetch the archive again, or make the set with dba generate pathfinder");
    }
    if (side_ > 0 && (picture.width != side_ || picture.height != side_)) {
      const std::string side = std::to_string(side_);
      fail(path.string() + " is " + std::to_string(picture.width) + " × " + std::to_string(picture.height) +
           " pixels, expected " + side + " × " + side +
           "; fetch the archive of pathfinder32 again, or make the set with dba generate pathfinder");
    }
    if (width_ == 0) {
      width_ = picture.width;
      height_ = picture.height;
    } else if (picture.width != width_ || picture.height != height_) {
      fail(path.string() + " is " + std::to_string(picture.width) + " × " + std::to_string(picture.height) +
           " pixels, the images before it " + std::to_string(width_) + " × " + std::to_string(height_) +
           "; all images of a set have one size: remove it or convert it");
    }
    example.content = Content::integers;
    example.label = std::string(1, sample.label);
    example.integers.assign(picture.pixels.begin(), picture.pixels.end());
    return true;
  }

 private:
  void list_samples(std::uint32_t file, std::size_t longest) {
    const std::string name = metadata_[file].string();
    LineReader lines(open_source(name), name, longest);
    std::string_view line;
    while (lines.next(line)) {
      line = without_return(line);
      if (lines.number() == 1 && line.starts_with("\x93NUMPY")) {
        throw bytes::FormatError(name +
                                 ": is an array of NumPy; the metadata of the Long-Range Arena release are lines of "
                                 "text under the same name: write one line a sample, fields separated by spaces");
      }
      std::string_view rest = line;
      const std::string_view subfolder = next_field(rest);
      if (subfolder.empty())
        continue;
      const std::string_view image = next_field(rest);
      next_field(rest);  // the number of the sample
      const std::string_view label = next_field(rest);
      if (label != "0" && label != "1") {
        throw bytes::FormatError(name + ":" + std::to_string(lines.number()) + ": the fourth field is " +
                                 bytes::in_quotes(label) +
                                 ", expected the label 0 or 1; a line is: folder, file, number, label, …");
      }
      samples_.push_back({file, static_cast<std::uint32_t>(lines.number()),
                          std::string(subfolder) + "/" + std::string(image), label[0]});
    }
  }

  void read_file(const std::filesystem::path& path) {
    const auto source = open_source(path);
    constexpr std::size_t kStep = std::size_t{16} << 10;
    constexpr std::size_t kLargest = std::size_t{64} << 20;
    std::size_t size = 0;
    std::size_t count = 0;
    do {
      file_.resize(size + kStep);
      count = source->read({reinterpret_cast<char*>(file_.data()) + size, kStep});
      size += count;
    } while (count > 0 && size < kLargest);
    file_.resize(size);
  }

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> metadata_;
  std::vector<Sample> samples_;
  std::size_t next_ = 0;
  std::vector<std::uint8_t> file_;
  std::size_t side_;  // 0: any of 32 at least
  std::size_t width_ = 0;
  std::size_t height_ = 0;
};

}  // namespace

bool is_pathfinder_folder(const std::filesystem::path& folder) {
  return is_folder(folder / "metadata") || is_folder(folder / "imgs");
}

std::unique_ptr<Reader> open_pathfinder_folder(const std::filesystem::path& folder, const ReaderOptions& options) {
  return std::make_unique<PathfinderReader>(folder, options);
}

}  // namespace dba::data
