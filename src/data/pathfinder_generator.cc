#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/data/pathfinder.h"
#include "png.h"

namespace dba::data {
namespace {

constexpr std::size_t kRoundPerThread = 256;
constexpr std::size_t kPerFolder = 1000;

void check(const PathfinderOptions& options) {
  if (options.count == 0)
    throw std::invalid_argument("generate_pathfinder: count: expected at least 1, got 0");
  if (options.threads > 1024) {
    throw std::invalid_argument("generate_pathfinder: threads: expected at most 1024, got " +
                                std::to_string(options.threads));
  }
}

// Draws all pictures, a round of them in parallel at a time, and hands them over in order.
template <class Take>
void draw_all(const PathfinderOptions& options, const PathfinderProgress& progress, Take take) {
  check(options);
  const std::size_t threads =
      options.threads > 0 ? options.threads : std::max<std::size_t>(1, std::thread::hardware_concurrency());
  std::vector<PathfinderPicture> round;
  for (std::size_t begin = 0; begin < options.count; begin += round.size()) {
    round.resize(std::min(threads * kRoundPerThread, options.count - begin));
    std::exception_ptr error;
    std::mutex mutex;
    {
      std::vector<std::jthread> workers;
      for (std::size_t worker = 0; worker < threads; ++worker) {
        workers.emplace_back([&, worker] {
          try {
            for (std::size_t i = worker; i < round.size(); i += threads)
              round[i] = draw_pathfinder(options, begin + i);
          } catch (...) {
            const std::lock_guard lock(mutex);
            error = std::current_exception();
          }
        });
      }
    }
    if (error)
      std::rethrow_exception(error);
    for (std::size_t i = 0; i < round.size(); ++i)
      take(begin + i, round[i]);
    if (progress)
      progress(begin + round.size(), options.count);
  }
}

void write_whole(const std::filesystem::path& file, std::span<const std::byte> content) {
  bytes::atomic_write(file, std::span(&content, 1));
}

void make_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
    throw bytes::FileError("make the folder", folder, errno);
}

// A line of the metadata: folder, file, number, label, continuity, lengths of contour and distractors, length,
// thickness and margin of a paddle, number of contrasts.
std::string metadata_line(const std::string& folder, std::size_t number, bool connected, std::size_t contour_length) {
  return folder + " sample_" + std::to_string(number) + ".png " + std::to_string(number) + (connected ? " 1" : " 0") +
         " 1.0 " + std::to_string(contour_length) + " " + std::to_string(contour_length / 3) + " 2 0.5 1 1\n";
}

}  // namespace

void write_pathfinder_records(const std::filesystem::path& file, const PathfinderOptions& options,
                              const PathfinderProgress& progress) {
  check(options);
  bytes::atomic_write(file, [&](bytes::OutputFile& out) {
    constexpr std::size_t kBuffer = std::size_t{1} << 20;
    std::vector<std::uint8_t> buffer;
    const auto flush = [&] {
      out.write(std::as_bytes(std::span(buffer)));
      buffer.clear();
    };
    draw_all(options, progress, [&](std::size_t, const PathfinderPicture& picture) {
      buffer.push_back(picture.connected ? 1 : 0);
      buffer.insert(buffer.end(), picture.pixels.begin(), picture.pixels.end());
      if (buffer.size() >= kBuffer)
        flush();
    });
    flush();
  });
}

void write_pathfinder_folder(const std::filesystem::path& folder, const PathfinderOptions& options,
                             const PathfinderProgress& progress) {
  check(options);
  if (std::error_code none; std::filesystem::exists(folder / "metadata", none)) {
    throw std::invalid_argument(folder.string() +
                                ": holds pictures already, which would mix with new ones; name another folder");
  }
  make_folder(folder / "metadata");
  make_folder(folder / "imgs");
  std::string metadata;
  draw_all(options, progress, [&](std::size_t number, const PathfinderPicture& picture) {
    const std::string subfolder = "imgs/" + std::to_string(number / kPerFolder);
    const std::size_t in_folder = number % kPerFolder;
    if (in_folder == 0)
      make_folder(folder / subfolder);
    const std::filesystem::path image = folder / subfolder / ("sample_" + std::to_string(in_folder) + ".png");
    const auto png = write_png({kPathfinderSide, kPathfinderSide, 1, {picture.pixels.begin(), picture.pixels.end()}});
    // Not flushed to the disk one by one: what the metadata do not name is not there.
    std::ofstream file(image, std::ios::binary);
    if (!file.write(reinterpret_cast<const char*>(png.data()), static_cast<std::streamsize>(png.size())).flush())
      throw bytes::FileError("write", image, errno);
    metadata += metadata_line(subfolder, in_folder, picture.connected, options.contour_length);
    if (in_folder + 1 == kPerFolder || number + 1 == options.count) {
      write_whole(folder / "metadata" / (std::to_string(number / kPerFolder) + ".npy"),
                  std::as_bytes(std::span(metadata)));
      metadata.clear();
    }
  });
}

void write_pathfinder_sheet(const std::filesystem::path& file, const PathfinderOptions& options, std::size_t rows,
                            std::size_t columns) {
  constexpr std::size_t kEnlarged = 3;
  constexpr std::size_t kFrame = 2;
  constexpr std::size_t kGap = 6;
  constexpr std::size_t kTile = kPathfinderSide * kEnlarged + 2 * kFrame;
  constexpr std::uint8_t kBackground = 96;
  if (rows == 0 || columns == 0 || rows > 100 || columns > 100)
    throw std::invalid_argument("write_pathfinder_sheet: rows, columns: expected 1 to 100 each");
  Picture sheet{columns * (kTile + kGap) + kGap, rows * (kTile + kGap) + kGap, 1, {}};
  sheet.pixels.assign(sheet.width * sheet.height, kBackground);
  PathfinderOptions first = options;
  first.count = rows * columns;
  draw_all(first, {}, [&](std::size_t number, const PathfinderPicture& picture) {
    const std::size_t top = kGap + number / columns * (kTile + kGap);
    const std::size_t left = kGap + number % columns * (kTile + kGap);
    for (std::size_t y = 0; y < kTile; ++y) {
      for (std::size_t x = 0; x < kTile; ++x) {
        const bool framed = std::min({x, y, kTile - 1 - x, kTile - 1 - y}) < kFrame;
        const std::size_t row = (y - kFrame) / kEnlarged;
        const std::size_t column = (x - kFrame) / kEnlarged;
        sheet.pixels[(top + y) * sheet.width + left + x] = framed
                                                               ? static_cast<std::uint8_t>(picture.connected ? 255 : 0)
                                                               : picture.pixels[row * kPathfinderSide + column];
      }
    }
  });
  const auto png = write_png(sheet);
  write_whole(file, std::as_bytes(std::span(png)));
}

}  // namespace dba::data
