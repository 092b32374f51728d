#include <cmath>
#include <nlohmann/json.hpp>

#include "plan/constants_file.h"
#include "plan/fused_range.h"
#include "plan/report.h"

namespace dba::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMilli = 1e3;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json shape_json(const Shape& s) {
  return {{"tokens", s.tokens},
          {"batch", s.batch},
          {"longest", s.length()},
          {"d", s.d},
          {"heads", s.heads},
          {"d_p", s.d_p},
          {"d_in", s.e * s.heads},
          {"form", to_string(s.form)},
          {"normalise", to_string(s.normalise)},
          {"slots_per_sequence", s.slots_per_sequence},
          {"device_and_type", section_name(s.device, s.dtype)},
          {"autocast", s.autocast},
          {"training", s.training},
          {"dropout", s.dropout},
          {"threads", s.device == at::kCPU ? Json(s.threads) : Json()}};
}

Json figure_json(const Figure& figure) {
  return {{"ms", number(kMilli * figure.seconds)},
          {"peak_bytes", figure.memory.tensors < 0 ? Json() : Json(figure.memory.tensors)},
          {"difference", number(figure.difference)},
          {"failure", text_or_null(figure.failure)}};
}

}  // namespace

std::string to_json(const Report& report) {
  Json candidates = Json::array();
  for (const auto& estimate : report.plan.estimates) {
    Json one = {{"candidate", to_string(estimate.candidate)},  {"order", to_string(order_of(estimate.candidate))},
                {"obstacle", text_or_null(estimate.obstacle)}, {"predicted_ms", number(kMilli * estimate.seconds)},
                {"operations", estimate.cost.operations},      {"bytes", estimate.cost.bytes},
                {"peak_bytes", estimate.cost.memory}};
    if (report.figures) {
      const auto found = report.figures->candidates.find(estimate.candidate);
      one["measured"] = found == report.figures->candidates.end() ? Json() : figure_json(found->second);
    }
    candidates.push_back(one);
  }
  Json softmax = {{"predicted_ms", kMilli * report.softmax_seconds}};
  if (report.figures) {
    softmax["measured"] = figure_json(report.figures->softmax);
  }
  Json all = {{"shape", shape_json(report.shape)},
              {"constants", {{"calibrated", report.calibrated}, {"file", report.constants_file}}},
              {"candidates", candidates},
              {"choice", to_string(report.plan.choice)},
              {"reason", report.plan.reason},
              {"softmax", softmax},
              {"crossover_length", report.crossover ? Json(*report.crossover) : Json()}};
  if (report.shape.device == at::kCUDA) {
    all["hopper_obstacles"] = hopper_obstacles(report.shape);
    all["fold_obstacles"] = fold_obstacles(report.shape);
    all["core_obstacle"] = core_obstacle(report.shape);
  }
  return all.dump(1) + "\n";
}

std::string to_json(const std::vector<GridRow>& rows) {
  Json all = Json::array();
  const auto by_candidate = [](const std::map<Candidate, double>& seconds) {
    Json figures = Json::object();
    for (const auto& [candidate, value] : seconds) {
      figures[to_string(candidate)] = kMilli * value;
    }
    return figures;
  };
  for (const auto& row : rows) {
    all.push_back({{"shape", shape_json(row.shape)},
                   {"choice", to_string(row.choice)},
                   {"choice_ms", kMilli * row.choice_seconds},
                   {"best", to_string(row.best)},
                   {"best_ms", kMilli * row.best_seconds},
                   {"loss", row.loss()},
                   {"measured_ms", by_candidate(row.seconds)},
                   {"predicted_ms", by_candidate(row.predicted)}});
  }
  return all.dump(1) + "\n";
}

}  // namespace dba::plan
