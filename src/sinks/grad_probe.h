// The files of a gradient probe: a sink that writes one summary per step and the signs beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/probe.h"
#include "trainmon/sink.h"

namespace trainmon {

// How signs are kept. `packed` is NAME.sign, 1 bit per element and plane. `npy` is NAME.npy, a
// byte per element: bool (x > 0), or int8 (-1, 0, 1; NaN is 0) where the signs are ternary.
enum class SignFiles : std::uint8_t { packed, npy };

struct GradProbeOptions {
  ProbeRequest request;  // of the probes that will come
  SignFiles sign_files = SignFiles::packed;
  std::string digest_column;             // heads the digests; "": digest_name()
  std::vector<std::string> bound_texts;  // the bounds as headings show them; empty: number_text()
};

// Writes what Monitor::probe() measured (docs/formats.md), into RunInfo::directory:
//
//   grad_summary_{step}.csv   param_name[,digest][,intervals...,=0],max,min,norm,shape
//   step{step}/{file_name_of(param_name)}.sign or .npy
//
// The step is the one that probe() was given. An earlier run's files of that name, .sign or .npy,
// go. What further probes of the same step measured (another optimizer's parameters) is added to
// its summary. Every file is whole or not there, and all files of one probe() appear together.
// What cannot be written as a whole leaves nothing behind. An interval's value is its share of
// all elements, 0 for an empty tensor. max, min and norm are rounded to float32 and printed as
// Python prints the double of it; max and min of nothing are nan.
std::unique_ptr<Sink> make_grad_probe_sink(const GradProbeOptions& options);

// A parameter's name as the beginning of a file name. "/" is "%2F", "%" "%25", NUL "%00". Of a
// long one the end is "~" and the CRC-32C, 200 bytes in all. Of two that are one, the first is
// written.
std::string file_name_of(std::string_view parameter);

}  // namespace trainmon
