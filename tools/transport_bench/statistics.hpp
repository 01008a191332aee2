#pragma once
/// \file statistics.hpp
/// What is made of measured numbers: latencies, medians, and the cost model t = a*n + bytes/B.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace transport_bench {

/// Nearest rank: the smallest value that at least `fraction` of all values do not exceed. `sorted` ascends.
[[nodiscard]] inline double percentile_of_sorted(std::span<const double> sorted, double fraction) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(sorted.size()) - 1e-9);
  const auto index = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Seconds per read.
struct latency_summary {
  std::uint64_t count = 0;
  double least = 0;
  double average = 0;
  double deviation = 0;  ///< standard deviation of the sample
  double p50 = 0;        ///< the typical one
  double p99 = 0;
  double p999 = 0;
  double most = 0;
};

/// Collects latencies in bounded memory. Count, extremes, average and deviation are exact for any number of
/// values; percentiles are of all values up to `max_kept`, of every 2nd beyond it, of every 4th beyond twice
/// as many, and so on.
class latency_samples {
 public:
  static constexpr std::size_t max_kept = 1u << 19;

  void add(double seconds) {
    if (count_ == 0 || seconds < least_) least_ = seconds;
    if (count_ == 0 || seconds > most_) most_ = seconds;
    ++count_;
    const double from_mean = seconds - mean_;  // Welford: no cancellation
    mean_ += from_mean / static_cast<double>(count_);
    squares_ += from_mean * (seconds - mean_);
    if ((count_ - 1) % stride_ != 0) return;
    if (kept_.size() == max_kept) {
      for (std::size_t i = 0; i < max_kept / 2; ++i) kept_[i] = kept_[2 * i];
      kept_.resize(max_kept / 2);
      stride_ *= 2;
      if ((count_ - 1) % stride_ != 0) return;
    }
    kept_.push_back(seconds);
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }

  /// Of several threads or rounds together. Each part's kept values count as often as they stand for.
  [[nodiscard]] static latency_summary merge(std::span<const latency_samples> parts) {
    latency_summary out;
    double sum = 0;
    std::uint64_t stride = 1;
    for (const auto& part : parts) stride = std::max(stride, part.stride_);
    std::vector<double> values;
    for (const auto& part : parts) {
      if (part.count_ == 0) continue;
      out.least = out.count == 0 ? part.least_ : std::min(out.least, part.least_);
      out.most = std::max(out.most, part.most_);
      out.count += part.count_;
      sum += part.mean_ * static_cast<double>(part.count_);
      for (std::size_t i = 0; i < part.kept_.size(); i += stride / part.stride_)
        values.push_back(part.kept_[i]);
    }
    if (out.count == 0) return out;
    out.average = sum / static_cast<double>(out.count);
    double squares = 0;
    for (const auto& part : parts) {
      const double apart = part.mean_ - out.average;
      squares += part.squares_ + apart * apart * static_cast<double>(part.count_);
    }
    if (out.count > 1) out.deviation = std::sqrt(squares / static_cast<double>(out.count - 1));
    std::ranges::sort(values);
    out.p50 = percentile_of_sorted(values, 0.5);
    out.p99 = percentile_of_sorted(values, 0.99);
    out.p999 = percentile_of_sorted(values, 0.999);
    return out;
  }

 private:
  std::uint64_t count_ = 0;
  std::uint64_t stride_ = 1;  ///< every stride-th value is kept
  double least_ = 0;
  double most_ = 0;
  double mean_ = 0;
  double squares_ = 0;  ///< sum of squared distances from the mean
  std::vector<double> kept_;
};

/// One row of a size sweep: `reads` reads of `bytes` in total took `seconds`.
struct cost_point {
  double reads = 0;
  double bytes = 0;
  double seconds = 0;
};

/// t = a*n + bytes/B.
struct cost_fit {
  double seconds_per_read = 0;   ///< a; never negative
  double bytes_per_second = 0;   ///< B; infinite if larger reads take no longer
  double relative_residual = 0;  ///< root mean square of (model - measured) / measured
  /// Size at which half of B is reached: a*B.
  [[nodiscard]] double half_bandwidth_bytes() const { return seconds_per_read * bytes_per_second; }
};

/// Least squares over the rows, of the error relative to each row's time: a sweep spans four orders of
/// magnitude, and the largest row must not be the only one that counts. Empty with fewer than two sizes.
[[nodiscard]] inline std::optional<cost_fit> fit_cost(std::span<const cost_point> points) {
  // Row i, divided by its time: 1 = a * x + b * y with x = reads/t, y = bytes/t, b = 1/B.
  double xx = 0, xy = 0, yy = 0, x_sum = 0, y_sum = 0;
  std::size_t count = 0;
  for (const auto& point : points) {
    if (!(point.reads > 0 && point.bytes > 0 && point.seconds > 0)) continue;
    const double x = point.reads / point.seconds;
    const double y = point.bytes / point.seconds;
    xx += x * x, xy += x * y, yy += y * y, x_sum += x, y_sum += y;
    ++count;
  }
  const double determinant = xx * yy - xy * xy;
  if (count < 2 || !(determinant > 1e-12 * xx * yy)) return std::nullopt;
  double a = (x_sum * yy - y_sum * xy) / determinant;
  double b = (y_sum * xx - x_sum * xy) / determinant;
  if (a < 0) {  // the best fit that can be meant: reads cost nothing
    a = 0;
    b = y_sum / yy;
  } else if (b < 0) {
    b = 0;
    a = x_sum / xx;
  }
  double squares = 0;
  for (const auto& point : points) {
    if (!(point.reads > 0 && point.bytes > 0 && point.seconds > 0)) continue;
    const double error = (a * point.reads + b * point.bytes) / point.seconds - 1;
    squares += error * error;
  }
  return cost_fit{a, 1 / b, std::sqrt(squares / static_cast<double>(count))};
}

}  // namespace transport_bench
