#include "train/protocol.h"

#include "train/metrics_json.h"

namespace dba::train {
namespace {

nlohmann::ordered_json of_update(std::int64_t update, const Metrics& metrics) {
  nlohmann::ordered_json json{{"update", update}};
  json.update(as_json(metrics));
  return json;
}

}  // namespace

bool Protocol::chooses() const {
  return config_.protocol != "last_epoch";
}

bool Protocol::watches_test() const {
  return config_.train.watch_test && config_.protocol != "as_published";
}

bool Protocol::takes(const Metrics& metrics, Position& position) const {
  if (config_.train.watch_test && config_.protocol == "as_published") {
    remember_best_test(metrics, position);
  }
  const auto value = metrics.value(config_.train.metric);
  const bool best =
      !chooses() || position.best_update < 0 || Metrics::better(config_.train.metric, value, position.best);
  if (best) {
    position.best = value;
    position.best_update = position.update;
    position.stale = 0;
  } else {
    ++position.stale;
  }
  return best;
}

void Protocol::remember_best_test(const Metrics& test, Position& position) const {
  const auto& metric = config_.train.metric;
  const auto best = [&] { return nlohmann::json::parse(position.best_test).at(metric).get<double>(); };
  if (position.best_test.empty() || Metrics::better(metric, test.value(metric), best())) {
    position.best_test = of_update(position.update, test).dump();
  }
}

bool Protocol::out_of_patience(const Position& position) const {
  return config_.train.patience > 0 && position.stale >= config_.train.patience;
}

nlohmann::ordered_json Protocol::figures(const Position& position, const Metrics& chosen,
                                         const std::function<Metrics()>& last) const {
  nlohmann::ordered_json figures;
  figures[config_.protocol] = of_update(position.best_update, chosen);
  // Where patience ended the run, its last epoch was chosen too.
  if (config_.train.watch_test && chooses() && !out_of_patience(position)) {
    figures["last_epoch"] = of_update(position.update, last());
  }
  if (watches_test()) {
    figures["as_published"] = nlohmann::ordered_json::parse(position.best_test);
  }
  return figures;
}

}  // namespace dba::train
