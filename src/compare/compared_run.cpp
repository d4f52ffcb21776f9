// What is known of a run beside its rows.
#include "compare/compared_run.h"

#include <map>

#include "base/text.h"
#include "read/run_layout.h"

namespace trainmon {
namespace {

// A run that was cut is not all there, though every byte of it is sound.
void say_not_stopped(const std::filesystem::path& run, std::vector<std::string>& to) {
  std::map<int, const RankDirectory*> newest;
  const std::vector<RankDirectory> directories = rank_directories(run);
  for (const RankDirectory& one : directories) {
    const RankDirectory*& known = newest[one.rank];
    if (known == nullptr || one.restart > known->restart) known = &one;
  }
  for (const auto& [rank, directory] : newest) {
    std::vector<Damage> said_before;
    const auto stored = read_health_json(*directory, said_before);
    if (!stored || stored->closed) continue;
    to.push_back("rank " + std::to_string(rank) +
                 " was not stopped in order (killed, or still running): what came "
                 "after its last rows is not there");
  }
}

void take_facts(ComparedRun& run, const RunRows& facts) {
  run.world_size = facts.missing.world_size;
  run.declared = facts.declared;
  run.holds = "ranks " + ranks_text(facts.ranks) + " and kinds";
  for (const std::string& kind : facts.kinds) run.holds += " " + printable(kind);
  if (!facts.missing.ranks.empty()) run.incomplete.push_back(missing_text(facts.missing));
  for (const std::string& sentence : facts.incomplete) run.incomplete.push_back(sentence);
}

}  // namespace

std::unique_ptr<ComparedRun> open_compared(const std::filesystem::path& path,
                                           const ReadOptions& select) {
  const SourceFormat format = detected_format(path);
  auto run = std::make_unique<ComparedRun>(format != SourceFormat::msprobe_csv);
  run->side.path = path;
  run->side.format = format_name(format);
  if (format == SourceFormat::log) {
    run->stream = std::make_unique<RunStream>(path, select);
    take_facts(*run, run->stream->facts());
    if (run->stream->facts().incomplete.empty()) say_not_stopped(path, run->incomplete);
    run->steps = log_steps(*run->stream, run->tensors, threads_with_pieces(select.threads));
    return run;
  }
  SourceOptions options;
  options.from = path;
  options.from_format = format;
  options.select = select;
  const std::unique_ptr<Source> source = open_source(options, run->account);
  run->steps = table_steps(*source, run->tensors, run->account);
  if (const RunRows* facts = source->facts()) take_facts(*run, *facts);
  if (!source->is_msprobe()) return run;
  run->resolution = 0.5e-6;
  for (const std::string& name : source->stats()) {
    if (stat_from_name(name)) continue;
    run->incomplete.push_back("column '" + printable(name) + "': no statistic that is known");
  }
  return run;
}

std::vector<std::string> not_used(const ComparedRun& run) {
  RowAccount of_log;
  if (run.stream) of_log.damage(run.stream->facts().damage);
  run.steps->tell(of_log);
  const RowReport report = run.stream ? of_log.report() : run.account.report();
  std::vector<std::string> sentences;
  for (const RejectedRows& one : report.rejections) sentences.push_back(rejection_text(one));
  sentences.insert(sentences.end(), run.incomplete.begin(), run.incomplete.end());
  return sentences;
}

}  // namespace trainmon
