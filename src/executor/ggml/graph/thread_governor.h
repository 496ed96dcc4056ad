// ThreadGovernor: how many threads steps get while other programs want the same processors.
//
// A step waits for whoever has a part of it. So a thread whose processor is another program's half of the time halves
// the speed of all, and without it the others would be faster. What tells is how long threads wait for a processor
// (port/run_delays.h): when that is much, some fewer threads are tried, and one more now and then when it is little. A
// trial lasts a window of steps. One of fewer threads after which hardly any waits is followed by some of more, until
// they wait again: where that was no faster than all that there were before, these come back. Where every processor is
// taken none is faster: all threads are kept, and where that is plain to see, fewer aren't tried.
//
// Steps of half a window or more keep half of the threads. Two servers that each step down to the processors
// that the other leaves free are content with any division of them. Where decisions are few, they drift to uneven ones.
//
// A step may be worth fewer threads than there are (step_cost.h). It says nothing about those that it didn't have.
//
// Plain arithmetic, without a clock or threads of its own. Not thread safe.
#pragma once

#include <functional>
#include <map>
#include <optional>

namespace coppice::executor {

class ThreadGovernor {
 public:
  static constexpr double kWindow = 0.020;  ///< seconds of steps between two decisions

  /// Threads that wait for a processor at any one time, on average: more are a neighbour, fewer are none.
  static constexpr double kMuch = 0.25, kLittle = 0.12;

  /// delays: seconds that all threads together have waited since some time; called once a window, and after each step
  /// of a trial.
  ThreadGovernor(int most, std::function<double()> delays);

  int n_threads() const { return n_; }

  /// After a step that had `used` threads, at most n_threads(). now: seconds of any steady clock; kind: steps of one
  /// kind take about the same time. True: n_threads() has changed.
  bool ran(double now, double seconds, int kind, int used);

 private:
  struct Window {
    double seconds = 0, expected = 0;
    double delays = 0;  ///< when it began
    int used = 0;       ///< threads, the most of its steps
    int steps = 0;
  };
  struct Trial {
    int from, to;           ///< threads
    double waiting, speed;  ///< before it
    bool more() const { return to > from; }
  };

  void decide(double now);
  void judge(double now, double waiting, double speed);
  void try_more(double waiting, double speed);
  void try_out(int n, double waiting, double speed);
  void give_up(double now);
  int least() const { return long_steps_ ? (most_ + 1) / 2 : 1; }
  int fewest(int from) const;  ///< threads that are tried

  int most_, n_;
  std::function<double()> delays_;
  std::map<int, double> usual_;  ///< seconds of a step of each kind; as it was while trials last
  Window window_;
  std::optional<Trial> trial_;
  double last_ = 0;          ///< step's end
  double seen_ = 0;          ///< delays when they were read last
  double took_ = 0;          ///< seconds of the last window
  bool long_steps_ = false;  ///< of the last window
  struct Before {
    int n;
    double speed;
  };
  std::optional<Before> before_;  ///< fewer are tried, and it isn't clear yet whether they stay
  int more_ = 1, fewer_ = 1;      ///< threads in the next trial, at least
  double next_more_ = 0, next_fewer_ = 0;
  double wait_more_, wait_fewer_;  ///< after a trial that failed
};

}  // namespace coppice::executor
