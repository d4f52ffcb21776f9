// anomaly.json: every entry is taken or named as damage.
#include <nlohmann/json.hpp>

#include "answers/anomalies.h"
#include "fuzz.h"
#include "trainmon/read.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon;
  const std::filesystem::path directory = fuzz::scratch() / "rank0";
  std::filesystem::create_directories(directory);
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::put(directory / "anomaly.json", text);
  const AnomalyList list = read_anomalies(fuzz::scratch());
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  fuzz::check(list.files == 1, "the file is counted");
  if (object.is_object()) {
    // Keys that are there twice are one more line of damage.
    const std::size_t said = list.entries.size() + list.damage.size();
    fuzz::check(said == object.size() || said == object.size() + 1, "no entry is lost");
  } else {
    fuzz::check(list.entries.empty() && list.damage.size() == 1, "another file is damage");
  }
  const std::filesystem::path again = fuzz::scratch() / "sorted.json";
  write_anomalies(again, list.entries);
  return 0;
}
