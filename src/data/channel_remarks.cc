#include "channel_remarks.h"

#include <algorithm>

#include "bytes/count.h"

namespace dba::data {

void remark_on_channels(Description& description) {
  for (const FileDescription& file : description.files) {
    if (file.channels > 0 && file.repairs.empty_channels == file.records * file.channels)
      description.remarks.push_back(file.file.filename().string() +
                                    " has series without any value; write numbers where they are known");
  }
  const auto training = std::ranges::find_if(
      description.files, [](const FileDescription& file) { return file.part == "train" && file.channels > 0; });
  if (training == description.files.end())
    return;
  for (const FileDescription& file : description.files) {
    if (file.channels > 0 && file.channels != training->channels) {
      description.remarks.push_back(file.file.filename().string() + " has series of " +
                                    bytes::counted(file.channels, "channel") + ", the training part of " +
                                    std::to_string(training->channels) +
                                    ", so that training refuses them; give both the same channels");
    }
  }
}

}  // namespace dba::data
