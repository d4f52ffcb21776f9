// The scalars that trainmon itself records beside those given to log().
#pragma once

#include <array>
#include <string_view>

namespace trainmon {

// Whether a step was recorded, and the share of its time; where there is a budget.
inline constexpr std::string_view kRecordedScalar = "trainmon/recorded";
inline constexpr std::string_view kShareScalar = "trainmon/share";
// By which somebody says that weights are edited.
inline constexpr std::string_view kEditScalar = "trainmon/edit";
// The number of a model chunk that was called in evaluation mode, with gradients.
inline constexpr std::string_view kEvaluationScalar = "trainmon/evaluation";
// The number of an optimizer whose step added to gradients of the step before: nobody cleared them.
inline constexpr std::string_view kUnclearedScalar = "trainmon/uncleared";
// The number of a model chunk that was given more than tensors that have rows.
inline constexpr std::string_view kUnreadScalar = "trainmon/unread_input";
// From this step on ranks may have other numbers of batches: Join of torch is around the loop.
inline constexpr std::string_view kUnevenScalar = "trainmon/uneven";
// The number of an optimizer in whose place one of another class steps, from this step on. Where
// the formula of that class is known, -1 - number.
inline constexpr std::string_view kOtherOptimizerScalar = "trainmon/other_optimizer";

inline constexpr std::array kOwnScalars = {kRecordedScalar,   kShareScalar,         kEditScalar,
                                           kEvaluationScalar, kUnclearedScalar,     kUnreadScalar,
                                           kUnevenScalar,     kOtherOptimizerScalar};

}  // namespace trainmon
