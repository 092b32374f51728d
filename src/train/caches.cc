#include "dba/train/caches.h"

#include "dba/data/cache.h"
#include "train/sets.h"

namespace dba::train {

std::vector<WrittenCache> write_caches(const config::TrainConfig& config, const std::filesystem::path& folder,
                                       const std::function<void(const std::string&)>& say) {
  auto here = config;
  here.data.cache = folder.string();
  const auto sets = open_sets(here, folder, /*resume=*/false, say);
  // What is a cache already is not written again.
  const auto place = [&](const std::string& source, const char* name) {
    return data::is_cache(source) ? std::filesystem::path(source) : folder / name;
  };
  std::vector<WrittenCache> written{{"data.train", place(config.data.train, "train.cache"), sets.train.size()}};
  if (sets.validation && config.protocol != "as_published") {
    written.push_back({"data.validation", place(config.data.validation, "validation.cache"), sets.validation->size()});
  }
  if (sets.test) {
    written.push_back({"data.test", place(config.data.test, "test.cache"), sets.test->size()});
  }
  return written;
}

}  // namespace dba::train
