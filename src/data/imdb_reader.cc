#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "dba/bytes/errors.h"
#include "folder_listing.h"
#include "readers.h"
#include "unreadable.h"

namespace dba::data {
namespace {

struct Review {
  std::uint64_t id;
  const char* label;
  std::string name;
};

std::vector<Review> list_reviews(const std::filesystem::path& folder) {
  std::vector<Review> reviews;
  for (const char* const label : {"neg", "pos"}) {
    if (!is_folder(folder / label)) {
      throw bytes::FormatError(folder.string() + ": the folder " + label +
                               " is missing; a part of IMDb has pos and neg, with a file for every review: unpack the "
                               "archive again");
    }
    const std::size_t before = reviews.size();
    for (std::string& name : names_in(folder / label)) {
      if (!name.ends_with(".txt"))
        continue;
      std::uint64_t id = std::numeric_limits<std::uint64_t>::max();
      std::from_chars(name.data(), name.data() + name.size(), id);
      reviews.push_back({id, label, std::move(name)});
    }
    if (reviews.size() == before)
      throw bytes::FormatError((folder / label).string() +
                               ": holds no review, no file ID_RATING.txt; unpack the archive again");
  }
  std::ranges::sort(reviews, {}, [](const Review& review) {
    return std::tuple(review.id, std::string_view(review.label), std::string_view(review.name));
  });
  return reviews;
}

// One file a review, by number, the classes in turn: every stretch of the order has about as many of both.
class ImdbReader : public Reader {
 public:
  ImdbReader(const std::filesystem::path& folder, const ReaderOptions& options)
      : Reader(folder.string(), options.labels),
        folder_(folder),
        longest_(options.longest_record),
        reviews_(list_reviews(folder)) {}

  std::optional<std::size_t> total() const override {
    return reviews_.size();
  }

 protected:
  bool read(Example& example) override {
    if (next_ == reviews_.size())
      return false;
    const Review& review = reviews_[next_++];
    const std::filesystem::path path = folder_ / review.label / review.name;
    enter(path.string());
    try {
      read_review(path, example);
    } catch (const bytes::FileError& error) {
      throw bytes::FormatError(with_remedy(error));  // of one review: the others can be read
    }
    example.label = review.label;
    return true;
  }

 private:
  void read_review(const std::filesystem::path& path, Example& example) const {
    const auto source = open_source(path);
    constexpr std::size_t kStep = std::size_t{16} << 10;
    std::size_t size = 0;
    std::size_t count = 0;
    do {
      example.text.resize(size + kStep);
      count = source->read({example.text.data() + size, kStep});
      size += count;
      if (size > longest_)
        fail("a review of more than " + std::to_string(longest_) + " bytes; raise longest_record");
    } while (count > 0);
    example.text.resize(size);
  }

  std::filesystem::path folder_;
  std::size_t longest_;
  std::vector<Review> reviews_;
  std::size_t next_ = 0;
};

}  // namespace

bool is_imdb_folder(const std::filesystem::path& folder) {
  return is_folder(folder / "pos") || is_folder(folder / "neg");
}

std::unique_ptr<Reader> open_imdb_folder(const std::filesystem::path& folder, const ReaderOptions& options) {
  return std::make_unique<ImdbReader>(folder, options);
}

}  // namespace dba::data
