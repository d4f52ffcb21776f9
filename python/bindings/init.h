// What each binding file adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace trainmon {

void init_stat(nanobind::module_& module);
void init_config(nanobind::module_& module);
void init_monitor(nanobind::module_& module);
void add_fast_calls(nanobind::module_& module);
void init_training(nanobind::module_& module);
void init_forwards(nanobind::module_& module);
void init_gradient_hooks(nanobind::module_& module);
void init_accumulated(nanobind::module_& module);
void init_declared(nanobind::module_& module);
void init_kept_states(nanobind::module_& module);
void init_updates(nanobind::module_& module);
void init_grad_probe(nanobind::module_& module);
void init_convert(nanobind::module_& module);
void init_directions(nanobind::module_& module);
void init_probe(nanobind::module_& module);
void init_read(nanobind::module_& module);
void init_query(nanobind::module_& module);
void init_scan(nanobind::module_& module);
void init_rows_by_kind(nanobind::module_& module);
void init_answers(nanobind::module_& module);
void init_report(nanobind::module_& module);
void init_push(nanobind::module_& module);

}  // namespace trainmon
