#pragma once
/// \file chrome_trace.hpp
/// An update of several readers as a Chrome trace (chrome://tracing, ui.perfetto.dev). Format: "Trace Event
/// Format" of the Chromium project; an array of complete ("X") and metadata ("M") events, times in
/// microseconds.
///
/// Each worker is a process of the trace. Each chunk is shown twice: where it arrives ("from S", in the
/// reader) and where it leaves ("to R", in the source), so that a relayed chunk is seen to come in at a
/// reader and to go out again to the next. Reads that overlap are on rows of their own: events of one row
/// must nest.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster.hpp"

namespace bench {

class chrome_trace {
 public:
  /// All chunks that one reader received.
  void add(const std::string& reader, std::vector<chunk_record> records) {
    std::ranges::sort(records, {}, &chunk_record::posted_ns);
    for (const chunk_record& one : records) {
      const std::string source = one.source.substr(0, one.source.rfind('/'));
      place(reader, "from " + source, one, source, reader);
      place(source, "to " + reader, one, source, reader);
    }
  }

  void write(const std::string& path) const {
    std::int64_t first_ns = INT64_MAX;
    for (const slice& one : slices_) first_ns = std::min(first_ns, one.record.posted_ns);
    const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-3; };
    nlohmann::json events = nlohmann::json::array();
    for (const auto& [name, worker] : processes_) {
      events.push_back(
          {{"ph", "M"}, {"name", "process_name"}, {"pid", worker.id}, {"args", {{"name", name}}}});
      for (const auto& [row, name_of_row] : worker.row_names)
        events.push_back({{"ph", "M"},
                          {"name", "thread_name"},
                          {"pid", worker.id},
                          {"tid", row},
                          {"args", {{"name", name_of_row}}}});
    }
    for (const slice& one : slices_) {
      events.push_back(
          {{"ph", "X"},
           {"name", "chunk " + std::to_string(one.record.chunk)},
           {"cat", "chunk"},
           {"pid", one.process},
           {"tid", one.row},
           {"ts", microseconds(one.record.posted_ns - first_ns)},
           {"dur", microseconds(one.record.arrived_ns - one.record.posted_ns)},
           {"args", {{"chunk", one.record.chunk}, {"source", one.source}, {"reader", one.reader}}}});
    }
    std::ofstream out{path};
    out << events.dump() << "\n";
    out.flush();
    if (!out) throw std::runtime_error("cannot write " + path);
  }

 private:
  struct slice {
    chunk_record record{};
    std::size_t process = 0;
    std::size_t row = 0;
    std::string source{};
    std::string reader{};
  };
  struct worker_rows {
    std::size_t id = 0;
    std::map<std::string, std::vector<std::pair<std::size_t, std::int64_t>>> rows{};  // row, busy until
    std::map<std::size_t, std::string> row_names{};
  };

  /// On the first row of this name that is free by then.
  void place(const std::string& where, const std::string& row_name, const chunk_record& record,
             const std::string& source, const std::string& reader) {
    worker_rows& own =
        processes_.try_emplace(where, worker_rows{processes_.size() + 1, {}, {}}).first->second;
    auto& rows = own.rows[row_name];
    auto row = std::ranges::find_if(rows, [&](const auto& one) { return one.second <= record.posted_ns; });
    if (row == rows.end()) {
      const std::size_t number = own.row_names.size() + 1;
      own.row_names[number] = row_name;
      row = rows.insert(rows.end(), {number, 0});
    }
    row->second = record.arrived_ns;
    slices_.push_back({record, own.id, row->first, source, reader});
  }

  std::map<std::string, worker_rows> processes_;
  std::vector<slice> slices_;
};

}  // namespace bench
