#include "support/released_by_hand.h"

#include <cmath>
#include <numbers>

namespace dba::test {
namespace {

Table product(const Table& a, const Table& b) {
  Table c(a.size(), Numbers(b.front().size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < b.front().size(); ++j)
      for (std::size_t k = 0; k < b.size(); ++k)
        c[i][j] += a[i][k] * b[k][j];
  return c;
}

Table turned(const Table& a) {
  Table t(a.front().size(), Numbers(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a.front().size(); ++j)
      t[j][i] = a[i][j];
  return t;
}

Table columns(const Table& a, std::size_t head, std::size_t width) {
  Table part;
  for (const Numbers& row : a) {
    const auto begin = row.begin() + static_cast<std::ptrdiff_t>(head * width);
    part.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(width));
  }
  return part;
}

void put_beside(Table& all, const Table& part) {
  all.resize(part.size());
  for (std::size_t i = 0; i < part.size(); ++i)
    all[i].insert(all[i].end(), part[i].begin(), part[i].end());
}

/// Each row's softmax over its first `real` entries, after a division by `scale`; the others are 0.
void softmax_rows(Table& scores, double scale, std::size_t real) {
  for (Numbers& row : scores) {
    double sum = 0;
    for (std::size_t j = 0; j < row.size(); ++j) {
      row[j] = j < real ? std::exp(row[j] / scale) : 0.0;
      sum += row[j];
    }
    for (double& value : row)
      value /= sum;
  }
}

double gelu(double v) {
  return v * 0.5 * (1.0 + std::erf(v / std::numbers::sqrt2));
}

class ByHand {
 public:
  ByHand(const SeriesClassifierByHand& model, std::size_t real) : model_(model), real_(real) {}

  Table linear(const Table& x, const std::string& name) const {
    const Numbers& weight = model_.weights.at(name + ".weight");
    const Numbers& bias = model_.weights.at(name + ".bias");
    const std::size_t width = x.front().size();
    Table y(x.size(), bias);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t o = 0; o < bias.size(); ++o)
        for (std::size_t k = 0; k < width; ++k)
          y[i][o] += x[i][k] * weight[o * width + k];
    return y;
  }

  Table layer_norm(Table x, const std::string& name) const {
    const Numbers& weight = model_.weights.at(name + ".weight");
    const Numbers& bias = model_.weights.at(name + ".bias");
    const auto width = static_cast<double>(weight.size());
    for (Numbers& row : x) {
      double mean = 0, variance = 0;
      for (const double value : row)
        mean += value / width;
      for (const double value : row)
        variance += (value - mean) * (value - mean) / width;
      for (std::size_t j = 0; j < row.size(); ++j)
        row[j] = (row[j] - mean) / std::sqrt(variance + 1e-5) * weight[j] + bias[j];
    }
    return x;
  }

  /// Returns Y and puts C in the place of Z.
  Table attention(const Table& x, Table& z, const std::string& name) const {
    const std::size_t e = model_.d_in / model_.heads, g = model_.d / model_.heads;
    const double scale = std::sqrt(static_cast<double>(e));
    const Table z_q = linear(z, name + ".p_q"), x_k = linear(x, name + ".p_k"), x_v = linear(x, name + ".p_v");
    Table c;
    for (std::size_t h = 0; h < model_.heads; ++h) {
      Table a = product(columns(z_q, h, e), turned(columns(x_k, h, e)));
      softmax_rows(a, scale, real_);
      put_beside(c, product(a, columns(x_v, h, g)));
    }
    const Table q = linear(c, name + ".w_q"), k = linear(c, name + ".w_k"), v = linear(c, name + ".w_v");
    Table o;
    for (std::size_t h = 0; h < model_.heads; ++h) {
      Table s = product(columns(q, h, e), turned(columns(k, h, e)));
      softmax_rows(s, scale, model_.d_p);
      put_beside(o, product(s, columns(v, h, g)));
    }
    o = layer_norm(o, name + ".norm");
    const Table scores = linear(x, name + ".w_u");
    Table y;
    for (std::size_t h = 0; h < model_.heads; ++h) {
      Table u = columns(scores, h, model_.d_p);
      softmax_rows(u, 1.0, model_.d_p);
      put_beside(y, product(u, columns(o, h, g)));
    }
    z = c;
    return linear(y, name + ".w_o");
  }

  Table block(Table x, Table& z, const std::string& name) const {
    add(x, attention(x, z, name + ".attention"));
    x = layer_norm(x, name + ".block.attention_norm");
    Table inner = linear(x, name + ".block.linear_1");
    for (Numbers& row : inner)
      for (double& value : row)
        value = gelu(value);
    add(x, linear(inner, name + ".block.linear_2"));
    return layer_norm(x, name + ".block.ffn_norm");
  }

 private:
  static void add(Table& x, const Table& y) {
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t j = 0; j < x[i].size(); ++j)
        x[i][j] += y[i][j];
  }

  const SeriesClassifierByHand& model_;
  std::size_t real_;
};

}  // namespace

Numbers SeriesClassifierByHand::logits(const Table& series) const {
  const ByHand compute(*this, series.size());
  Table padded = series;
  padded.resize(longest, Numbers(series.front().size(), 0.0));
  Table x = compute.linear(padded, "backbone.features.linear");
  const Numbers& positions = weights.at("backbone.positions.weight");
  for (std::size_t t = 0; t < longest; ++t)
    for (std::size_t j = 0; j < d; ++j)
      x[t][j] = x[t][j] * std::sqrt(static_cast<double>(d)) + positions[t * d + j];
  const Numbers& slots = weights.at("backbone.encoder.slots.z");
  Table z(d_p, Numbers(d));
  for (std::size_t i = 0; i < d_p; ++i)
    for (std::size_t j = 0; j < d; ++j)
      z[i][j] = slots[i * d + j];
  for (std::size_t layer = 0; layer < layers; ++layer)
    x = compute.block(x, z, "backbone.encoder.layers." + std::to_string(layer));
  Numbers flat;
  for (std::size_t t = 0; t < longest; ++t)
    for (std::size_t j = 0; j < d; ++j)
      flat.push_back(t < series.size() ? gelu(x[t][j]) : 0.0);
  return compute.linear({flat}, "head.linear").front();
}

double weight_by_hand(std::size_t k, std::size_t i) {
  return (static_cast<double>((3 * i + 5 * k + i / 4) % 7) - 3.0) / 8.0;
}

}  // namespace dba::test
