// What a comparison of directions leaves of one rank: similarities.csv and verdict.json.
#pragma once

#include <string>

#include "directions/directions_compare.h"

namespace trainmon {

// As the peer writes it, byte by byte: BOM, CRLF, step, parameters, summary. An empty cell where
// nothing was compared.
std::string similarities_csv(const RankDirections& rank);
// docs/formats.md. Of a rank with a step at least; `report` has the ranks that only one dump has.
std::string verdict_json(const RankDirections& rank, const DirectionsReport& report,
                         const DirectionsOptions& options);

}  // namespace trainmon
