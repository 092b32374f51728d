#include "plan/cost.h"

#include <algorithm>
#include <cmath>

#include "plan/account.h"

namespace dba::plan {
namespace {

/// Multiply-adds on d_p rows: score rows from Z, for every Z; the rest for every sequence.
double fold_products(const Numbers& s) {
  return s.released ? s.d_p * 2 * s.d * s.H * s.e : s.d_p * 2 * s.d * s.d;
}

double core_products(const Numbers& s) {
  const double between_slots = s.slots * s.d_p * (s.e + s.d_h);
  return between_slots +
         (s.released ? s.d_p * (2 * s.d * s.H * s.e + 3 * s.d * s.d) : s.d_p * (4 * s.d * s.d + 2 * s.d * s.e));
}

double summaries(const Numbers& s) {
  return s.B * (s.rows + s.slots) * s.d * s.wide;
}

double of_token_width(const Numbers& s) {
  return s.N * s.d * s.element;
}

double parameter_gradients(const Numbers& s) {
  return s.training ? s.element * s.d * (8 * s.d + 3 * s.slots) : 0;
}

/// Numbers in the matrices of `core`.
double core_weights(const Numbers& s) {
  return s.d * (s.released ? 3 * s.d + 2 * s.H * s.e : 4 * s.d);
}

/// Bytes that the CPU's forward keeps for its backward: scores, weights and projections of batches without a sequence
/// that is split, if they are not many.
double kept_steps(const Numbers& s) {
  if (!s.cpu || !s.training || s.balance(s.B, s.N, 0).split) {
    return 0;
  }
  const auto panels = [&](double columns) { return std::ceil(columns / (4 * s.lanes)) * 4 * s.lanes; };
  const double bytes = s.wide * (s.N * (panels(s.rows) + panels(s.slots)) + (s.released ? 0 : s.B * s.d_p * 3 * s.d));
  return bytes <= static_cast<double>(ops::cpu::kMostKeptBytes) ? bytes : 0;
}

Cost fused(const Numbers& s) {
  Account account(s);
  const double kept = kept_steps(s);
  const bool in_cache = s.cpu && !s.balance(s.B, s.N, 0).split;
  account.pass({s.N, s.B, s.d, s.rows, /*restore=*/false, /*each=*/false, in_cache, kept > 0});
  account.pass({s.N, s.B, s.d, s.slots, /*restore=*/true, /*each=*/false, in_cache, kept > 0});
  const double fold = s.z_count * fold_products(s);
  const double middle = s.B * core_products(s);
  const double wider = s.columns(s.d_h) / s.d_h;  // products as wide as a head
  const double weights = s.wide * core_weights(s);
  /// `times` the products of the forward; `computed`: with those that backward repeats.
  const auto core = [&](Engine engine, double times, double computed, double sums_per_unit) {
    auto balance = s.balance(s.B, s.N, sums_per_unit);
    if (in_cache && times == 1) {
      balance = s.of_stacks(balance);
    } else if (s.cpu && balance.split) {
      balance = balance_of_core(static_cast<int64_t>(s.B), static_cast<int64_t>(s.d_p), s.threads);
    }
    account.cost.operations += 2 * times * (fold + middle);
    account.cost.bytes += 2 * times * summaries(s);
    const double exponentials = s.B * s.slots * s.d_p * (s.cpu && times > 1 ? 2 : 1);
    // In cache they are written for a backward, which packs them and their gradients besides.
    const double of_stack = times > 1 ? 5 : (s.training ? 1 : 0);
    const double read_or_written = in_cache ? of_stack : 2 * computed;
    account.spread(engine, balance.waiting,
                   {2 * computed * (s.cpu ? wider : 1) * middle, exponentials, read_or_written * summaries(s), 0, s.B});
    account.at(engine, kOperations) += 2 * times * fold;
    account.at(engine, kCalls) += 1;
    if (s.cpu) {
      // The weights are packed by all threads; backward sums their gradients in every unit of work.
      const double sums = 2 * balance.waiting * static_cast<double>(balance.units);
      account.at(engine, kBytes) += weights * (times > 1 ? 4 + sums : 2);
    }
  };
  core(Engine::core, 1, 1, 0);
  if (s.training) {
    // Projections from rows of the layer's own width are not kept.
    const double repeated = !s.cpu || (kept > 0 && !s.released) ? 0 : 1;
    core(Engine::backward_core, 2, 2 + repeated, (s.rows + s.slots) * s.d + core_weights(s));
  }
  account.cost.memory = (s.training ? 3 : 1) * (of_token_width(s) + summaries(s)) + parameter_gradients(s) + kept;
  return account.cost;
}

/// The passes cut into tiles of whole pieces of 16 to 256 tokens, which ATen's operations take one after the other.
Cost reference(const Numbers& s) {
  Account account(s);
  const double piece = std::clamp(std::exp2(std::ceil(std::log2(s.n))), 16.0, 256.0);
  const double tokens = std::ceil(s.n / piece) * piece * s.N / s.n;
  const double numbers_in_tile = s.cpu ? 0x1p19 : 0x1p25;
  const double compress_tiles = std::ceil(tokens * std::max(s.rows, s.d) / numbers_in_tile);
  const double restore_tiles = std::ceil(tokens * std::max(s.slots, s.d) / numbers_in_tile);
  const double middle = s.z_count * fold_products(s) + s.B * core_products(s);
  // With more than one tile the scores are taken again once their normaliser is known.
  const double compress = tokens * s.d * s.rows * (compress_tiles > 1 ? 3 : 2);
  const double restore = tokens * s.d * s.slots * 2;
  account.products(Engine::plain, compress + restore + middle, compress + restore + middle);
  account.at(Engine::plain, kExponentials) += tokens * (2 * s.rows + s.slots);
  account.weights(core_weights(s));
  account.at(Engine::plain, kCalls) += 90 + 30 * compress_tiles + 16 * restore_tiles;
  account.at(Engine::plain, kSequences) += s.B;
  account.traffic(Engine::plain, tokens * s.wide * (10 * s.rows + 6 * s.slots + 10 * s.d) + 2 * summaries(s));
  if (s.training) {
    const double backward = tokens * s.d * (5 * s.rows + 6 * s.slots) + 2 * middle;
    account.products(Engine::plain, backward, backward);
    account.at(Engine::plain, kExponentials) += tokens * (s.rows + 2 * s.slots);
    account.at(Engine::plain, kCalls) += 340 + 80 * (compress_tiles + restore_tiles);
    account.at(Engine::plain, kSequences) += 2 * s.B;
    account.traffic(Engine::plain, tokens * s.wide * (14 * s.rows + 16 * s.slots + 14 * s.d) + 4 * summaries(s));
  }
  const double in_tile = std::min(tokens, numbers_in_tile / std::max(s.rows, s.d));
  account.cost.memory = (s.training ? 3 : 1) * (of_token_width(s) + summaries(s)) + parameter_gradients(s) +
                        in_tile * s.wide * (4 * s.rows + 3 * s.slots + 2 * s.d);
  return account.cost;
}

Cost projected(const Numbers& s) {
  Account account(s);
  const double blocks = s.released ? s.H : 2 * s.H;        // a head's queries, or its keys
  const double width = s.released ? s.e + s.d_h : s.d_h;   // of a token in a block
  const double stored = s.N * s.element * blocks * width;  // the projections
  account.plain(s.N * s.d * blocks * width, of_token_width(s) + 3 * stored, 0, 4);
  account.pass({blocks * s.N, blocks * s.B, width, s.d_p, /*restore=*/false, /*each=*/true});
  if (!s.released) {
    account.pass({s.N, s.B, s.d, s.slots, /*restore=*/false});  // W_c'
  }
  account.pass({s.N, s.B, s.d, s.slots, /*restore=*/true});
  // C of the values and M, each turned from sequences of heads into heads of sequences and back; the rest is narrow.
  const double middle_bytes = s.B * s.wide * s.d * ((s.released ? 4 : 8) * s.slots + 10 * s.d_p);
  account.plain(s.B * (core_products(s) - (s.released ? s.d_p * s.d * s.d : 2 * s.d_p * s.d * s.d)), middle_bytes,
                s.B * s.slots * s.d_p, 36);
  account.weights(core_weights(s));
  account.at(Engine::plain, kSequences) += (s.training ? 3 : 1) * s.H * s.B;
  if (s.training) {
    account.traffic(Engine::plain, 4 * of_token_width(s));  // three gradients of X, added up
  }
  account.cost.memory = s.training ? 4 * of_token_width(s) + 4 * stored + parameter_gradients(s) + 2 * summaries(s)
                                   : std::max(2 * stored, of_token_width(s) + stored) + summaries(s);
  return account.cost;
}

/// On a batch that is padded to the longest sequence, with every weight in memory.
Cost direct(const Numbers& s) {
  Account account(s);
  const double tokens = s.B * s.n;
  const double inner = s.H * s.e;
  const double widths = s.released ? s.d + inner + s.slots : 3 * s.d + 2 * s.slots;  // of what is projected from X
  const double maps = s.released ? 2 * s.slots : 4 * s.slots;                        // entries of weights per token
  const double sums = s.released ? s.d_p * (inner + 2 * s.d) : 6 * s.d_p * s.d;
  const double between_slots = s.slots * s.d_p * (s.e + s.d_h);
  const double middle = s.B * (between_slots + s.d_p * s.d * (s.released ? 2 * inner + s.d : 2 * s.e)) +
                        (s.released ? s.z_count * s.d_p * s.d * inner : 0);
  account.plain(tokens * (s.d * (widths + s.d) + sums) + middle,
                tokens * s.element * (10 * s.d + 4 * widths + 9 * maps), tokens * maps, 70);
  account.weights(core_weights(s));
  account.at(Engine::plain, kSequences) += (s.training ? 3 : 1) * s.H * s.B;
  account.cost.memory = (s.training ? 2.5 : 1) * tokens * s.element * (5 * s.d + 8 * s.slots) + parameter_gradients(s);
  return account.cost;
}

}  // namespace

Cost cost_of(const Shape& shape, Candidate candidate) {
  const Numbers sizes(shape);
  switch (candidate) {
    case Candidate::fused:
      return fused(sizes);
    case Candidate::projected:
      return projected(sizes);
    case Candidate::reference:
      return reference(sizes);
    case Candidate::direct:
      break;
  }
  return direct(sizes);
}

Cost softmax_cost(const Shape& shape) {
  const Numbers s(shape);
  Account account(s);
  account.plain(s.N * 4 * s.d * s.d, 10 * of_token_width(s), 0, 10);
  // Backward takes the scores again: five products of the map against two.
  const double map = s.N * s.n * s.d * 2;
  account.products(Engine::softmax_attention, (s.training ? 3.5 : 1) * map, (s.training ? 3.5 : 1) * map);
  account.at(Engine::softmax_attention, kExponentials) += (s.training ? 2 : 1) * s.N * s.n * s.H;
  account.at(Engine::softmax_attention, kCalls) += s.training ? 3 : 1;
  account.at(Engine::softmax_attention, kSequences) += (s.training ? 2 : 1) * s.B * s.H;
  account.cost.memory = (s.training ? 12 : 6) * of_token_width(s) + parameter_gradients(s);
  return account.cost;
}

}  // namespace dba::plan
