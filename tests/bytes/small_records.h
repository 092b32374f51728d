#pragma once

/// A few records as JSON lines, for tests of what is made of them.
namespace dba::data {

inline constexpr const char* kWords =
    "{\"text\":\"b a c a\",\"label\":\"x\"}\n{\"text\":\"a b d\",\"label\":\"y\"}\n{\"text\":\"\",\"label\":\"x\"}\n";
inline constexpr const char* kSeries =
    "{\"series\":[[1,10],[2,null],[3,30]],\"label\":0}\n{\"series\":[[6,20]],\"label\":1}\n";

}  // namespace dba::data
