// What Monitor offers for its flight recorder.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "monitor_class.h"

namespace trainmon {

void bind_flight(MonitorClass& monitor) {
  monitor.def_prop_ro("has_recorder", &Monitor::has_recorder)
      .def("flight_copies",
           [](const Monitor& self) {
             std::vector<std::string> folders;
             for (const auto& folder : self.flight_copies()) folders.push_back(folder.string());
             return folders;
           })
      .def("flight_word", &Monitor::flight_word)
      .def("flight_group", &Monitor::flight_group, nb::arg("name"), nb::arg("ranks"))
      .def("forward_begins", [](Monitor& self) { self.note_stage(FlightStage::forward_begin); })
      .def("backward_begins", [](Monitor& self) { self.note_stage(FlightStage::backward_begin); })
      .def(
          "note_collective",
          [](Monitor& self, bool enters, bool waits, bool is_point_to_point,
             std::uint32_t operation, std::uint32_t group, std::uint64_t number,
             std::int64_t bytes) {
            self.note_collective(
                {enters, waits, is_point_to_point, operation, group, number, bytes});
          },
          nb::arg("enters"), nb::arg("waits"), nb::arg("is_point_to_point"), nb::arg("operation"),
          nb::arg("group"), nb::arg("number"), nb::arg("bytes"));
}

}  // namespace trainmon
