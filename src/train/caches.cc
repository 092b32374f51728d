#include "dba/train/caches.h"

#include "train/sets.h"

namespace dba::train {

std::vector<WrittenCache> write_caches(const config::TrainConfig& config, const std::filesystem::path& folder,
                                       const std::function<void(const std::string&)>& say) {
  auto here = config;
  here.data.cache = folder.string();
  const auto sets = open_sets(here, folder, /*resume=*/false, say);
  std::vector<WrittenCache> written{{"data.train", folder / "train.cache", sets.train.size()}};
  if (sets.validation && config.protocol != "as_published") {
    written.push_back({"data.validation", folder / "validation.cache", sets.validation->size()});
  }
  if (sets.test) {
    written.push_back({"data.test", folder / "test.cache", sets.test->size()});
  }
  return written;
}

}  // namespace dba::train
