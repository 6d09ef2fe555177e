//! Counters and histograms as Prometheus' text format.
//!
//! Each core counts for itself, under the lock that its records have anyway; they are added up when somebody asks.

use std::fmt::Write as _;
use std::time::Duration;

use fanfare_dispatch::Why;
use fanfare_types::{Reason, RequestEnd};

use crate::records::Entry;
use crate::stats::{FunctionStats, Stats};

/// Functions that have series of their own: those with the most requests. The others are one series, without a name.
const FUNCTIONS_MAX: usize = 500;
/// Upper bounds of the histograms' buckets, in microseconds and as text in seconds.
const BUCKETS: [(u64, &str); 15] = [
    (100, "0.0001"),
    (250, "0.00025"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (1_000_000, "1"),
    (5_000_000, "5"),
    (30_000_000, "30"),
    (120_000_000, "120"),
];
/// Stages that have a histogram, as in `Server-Timing`; `total` is the whole request.
const STAGES: [&str; 10] =
    ["queue", "execute", "total", "decide", "place", "transfer", "create", "start", "ready", "propagate"];

#[derive(Clone, Copy, Debug, Default)]
struct Histogram {
    /// The last one has no bound.
    counts: [u64; BUCKETS.len() + 1],
    sum: Duration,
}

impl Histogram {
    fn observe(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[BUCKETS.partition_point(|(bound, _)| *bound < micros)] += 1;
        self.sum += took;
    }

    fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.sum += other.sum;
    }
}

/// What one core has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    stages: [Histogram; STAGES.len()],
    /// By how they ended, and why they got their slot; without a slot in the last place.
    ended: [[u64; Why::ALL.len() + 1]; RequestEnd::ALL.len()],
}

impl Meter {
    /// A request has ended.
    pub(crate) fn count(&mut self, entry: &Entry) {
        let end = RequestEnd::ALL.iter().position(|end| *end == entry.end).unwrap_or(0);
        let why = entry.slot.as_ref().and_then(|slot| Why::ALL.iter().position(|why| *why == slot.why));
        self.ended[end][why.unwrap_or(Why::ALL.len())] += 1;
        self.stages[2].observe(entry.ended.since(entry.accepted));
        let Some(slot) = &entry.slot else {
            return self.stages[0].observe(entry.ended.since(entry.accepted));
        };
        let queue = slot.at.since(entry.accepted);
        self.stages[0].observe(queue);
        self.stages[1].observe(entry.answered.unwrap_or(entry.ended).since(slot.at));
        if let Some(stages) = slot.stages.as_deref() {
            let propagate = queue.saturating_sub(stages.total());
            let took =
                [stages.decide, stages.place, stages.transfer, stages.create, stages.start, stages.ready];
            for (histogram, took) in self.stages[3..].iter_mut().zip(took.into_iter().chain([propagate])) {
                histogram.observe(took);
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Meter) {
        self.stages.iter_mut().zip(&other.stages).for_each(|(sum, more)| sum.add(more));
        for (sums, counts) in self.ended.iter_mut().zip(other.ended) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
}

/// Text of one exposition. Writing to a string cannot fail.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.0,
            "# HELP fanfare_data_plane_{name} {help}\n# TYPE fanfare_data_plane_{name} {kind}"
        );
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "fanfare_data_plane_{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }
}

/// Everything, in the text format 0.0.4.
pub(crate) fn text(stats: &Stats, meter: &Meter, spans_dropped: u64) -> String {
    let mut text = Text(String::with_capacity(16 << 10));
    text.one("requests_held", "gauge", "Requests held, waiting ones included.", stats.requests);
    text.one("connections", "gauge", "Connections of clients.", stats.connections);
    text.one("connections_max", "gauge", "Connections that clients may have.", stats.connections_max);
    let help = "Connections of clients that were closed because there were too many.";
    text.one("connections_crowded_out_total", "counter", help, stats.crowded_out);
    text.one("synced", "gauge", "Whether all functions have been heard of once.", u8::from(stats.synced));
    text.one(
        "connected",
        "gauge",
        "Whether the stream to the control plane is up.",
        u8::from(stats.connected),
    );
    text.one("forwarded_total", "counter", "Requests sent on to a function's owner.", stats.forwarded);
    let failed = stats.handshakes_failed;
    text.one("tls_handshakes_failed_total", "counter", "TLS handshakes that failed.", failed);
    text.one("spans_dropped_total", "counter", "Trace spans that were not exported.", spans_dropped);
    ended(&mut text, meter);
    stages(&mut text, meter);
    problems(&mut text, stats);
    functions(&mut text, &stats.functions);
    text.0
}

fn ended(text: &mut Text, meter: &Meter) {
    let name = "requests_ended_total";
    text.family(name, "counter", "Requests that have ended, by how, and by why they got their slot.");
    for (end, counts) in RequestEnd::ALL.iter().zip(meter.ended) {
        let whys = Why::ALL.iter().map(|why| why.name()).chain(["none"]);
        for (why, count) in whys.zip(counts) {
            text.sample(name, &format!("end=\"{}\",slot=\"{why}\"", end.name()), count);
        }
    }
}

fn stages(text: &mut Text, meter: &Meter) {
    text.family("stage_seconds", "histogram", "Where the time of requests went.");
    for (stage, histogram) in STAGES.iter().zip(&meter.stages) {
        let mut sum = 0;
        let bounds = BUCKETS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
        for (bound, count) in bounds.zip(histogram.counts) {
            sum += count;
            text.sample("stage_seconds_bucket", &format!("stage=\"{stage}\",le=\"{bound}\""), sum);
        }
        text.sample("stage_seconds_sum", &format!("stage=\"{stage}\""), histogram.sum.as_secs_f64());
        text.sample("stage_seconds_count", &format!("stage=\"{stage}\""), sum);
    }
}

/// Every reason has its series from the beginning: one that appears with its first count is not seen to rise.
fn problems(text: &mut Text, stats: &Stats) {
    let name = "refused_total";
    text.family(name, "counter", "Requests that the platform answered with a problem, by reason.");
    for reason in Reason::ALL {
        let of_functions = stats.functions.iter().flat_map(|function| &function.problems);
        let all = of_functions.chain(&stats.problems).filter(|(counted, _)| counted == reason);
        let count: u64 = all.map(|(_, count)| count).sum();
        text.sample(name, &format!("reason=\"{}\"", reason.code()), count);
    }
}

type Column = (&'static str, &'static str, &'static str, fn(&FunctionStats) -> u64);

const COLUMNS: [Column; 10] = [
    ("function_arrivals_total", "counter", "Requests that arrived for a function.", |f| f.arrivals),
    ("function_answered_total", "counter", "Requests that the function answered.", |f| f.answered),
    ("function_warm_total", "counter", "Slots that were free on arrival.", |f| f.warm),
    ("function_handed_over_total", "counter", "Slots handed over to waiting requests.", |f| f.handed_over),
    ("function_moved_total", "counter", "Slots that came from other data planes.", |f| f.moved),
    ("function_cold_total", "counter", "Slots of sandboxes that were started.", |f| f.cold),
    ("function_condemned_total", "counter", "Sandboxes that were condemned.", |f| f.condemned),
    ("function_in_flight", "gauge", "Requests in sandboxes.", |f| f.in_flight.into()),
    ("function_queued", "gauge", "Requests that wait.", |f| f.queued.into()),
    ("function_sandboxes", "gauge", "Sandboxes that slots are held of.", |f| f.sandboxes as u64),
];

/// Series for the functions with the most requests; the others together have the empty name.
fn functions(text: &mut Text, all: &[FunctionStats]) {
    let mut active: Vec<_> =
        all.iter().filter(|function| function.arrivals > 0 || function.sandboxes > 0).collect();
    active.sort_by(|a, b| b.arrivals.cmp(&a.arrivals).then_with(|| a.name.cmp(&b.name)));
    let (named, others) = active.split_at(active.len().min(FUNCTIONS_MAX));
    for (name, kind, help, of) in COLUMNS {
        text.family(name, kind, help);
        for function in named {
            // Names have no character that needs an escape.
            text.sample(name, &format!("function=\"{}\"", function.name), of(function));
        }
        if !others.is_empty() {
            text.sample(name, "function=\"\"", others.iter().map(|function| of(function)).sum::<u64>());
        }
    }
    text.one("functions_without_series", "gauge", "Functions counted together.", others.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanfare_types::{FunctionId, FunctionName};

    #[test]
    fn buckets_hold_what_is_not_above_their_bound_and_cores_add_up() {
        let mut one = Meter::default();
        for micros in [0, 100, 101, 1_000_000, 999_000_000] {
            one.stages[0].observe(Duration::from_micros(micros));
        }
        let mut sum = one.clone();
        sum.add(&one);
        let text = text(&Stats::default(), &sum, 3);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        has("fanfare_data_plane_stage_seconds_bucket{stage=\"queue\",le=\"0.0001\"} 4");
        has("fanfare_data_plane_stage_seconds_bucket{stage=\"queue\",le=\"0.00025\"} 6");
        has("fanfare_data_plane_stage_seconds_bucket{stage=\"queue\",le=\"+Inf\"} 10");
        has("fanfare_data_plane_stage_seconds_count{stage=\"queue\"} 10");
        has("fanfare_data_plane_spans_dropped_total 3");
        has("fanfare_data_plane_refused_total{reason=\"queue-full\"} 0");
    }

    #[test]
    fn however_many_functions_there_are_the_series_are_bounded_and_nothing_is_left_out() {
        let function = |n: u64| FunctionStats {
            function: FunctionId(1),
            name: FunctionName::new(&format!("f{n}")).unwrap(),
            in_flight: 1,
            queued: 0,
            sandboxes: 1,
            arrivals: n,
            warm: 0,
            handed_over: 0,
            moved: 0,
            cold: 0,
            answered: 0,
            cut: 0,
            condemned: 0,
            problems: Vec::new(),
        };
        let stats = Stats { functions: (1..=2_000).map(function).collect(), ..Stats::default() };
        let text = text(&stats, &Meter::default(), 0);
        let arrivals: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("fanfare_data_plane_function_arrivals_total{"))
            .collect();
        assert_eq!(arrivals.len(), FUNCTIONS_MAX + 1);
        assert!(arrivals[0].contains("f2000"), "{}", arrivals[0]);
        let sum: u64 =
            arrivals.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(sum, (1..=2_000_u64).sum::<u64>());
        assert!(text.contains("\nfanfare_data_plane_functions_without_series 1500\n"));
    }
}
