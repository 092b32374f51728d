#pragma once

#include "dba/data/tokeniser.h"
#include "json_scanner.h"

namespace dba::data {

/// The object that Tokeniser::to_json writes. Throws JsonError.
Tokeniser scan_tokeniser(JsonScanner& scanner);

}  // namespace dba::data
