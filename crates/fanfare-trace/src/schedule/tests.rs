use proptest::prelude::*;

use super::*;
use crate::azure::{AzureFiles, Repairs, ScaleBounds};
use crate::quantiles::Quantiles;

const MINUTE_US: u64 = 60_000_000;

fn function(name: &str, invocations: &[u32]) -> TraceFunction {
    let (duration_ms, _) = Quantiles::new(
        &[0.0, 1.0, 25.0, 50.0, 75.0, 99.0, 100.0],
        &[0.0, 10.0, 50.0, 100.0, 200.0, 2e3, 3e5],
    );
    let (memory_mib, _) = Quantiles::new(&[1.0, 50.0, 100.0], &[0.2, 100.0, 20_000.0]);
    TraceFunction {
        name: name.to_owned(),
        invocations: invocations.to_vec(),
        duration_ms,
        duration_average_ms: 1_500.0,
        memory_mib,
        memory_average_mib: 56.1,
        bounds: Some(ScaleBounds { min: 0, max: 10_000 }),
    }
}

fn trace(functions: Vec<TraceFunction>) -> Trace {
    let columns = functions[0].invocations.len();
    Trace { first_column: 480, columns, functions, repairs: Repairs::default() }
}

fn options(columns: usize) -> ScheduleOptions {
    ScheduleOptions {
        from: 0,
        columns,
        warm_up: 0,
        granularity: Granularity::Minute,
        gaps: Gaps::Exponential,
        shift: true,
        rate_scale: 1.0,
        duration_scale: 1.0,
        seed: 42,
    }
}

fn counts(plan: &Plan, name: &str, columns: usize) -> Vec<u32> {
    let index = plan.functions.iter().position(|function| function.name == name);
    let mut counts = vec![0; columns];
    for invocation in plan.invocations.iter().filter(|i| Some(i.function as usize) == index) {
        counts[invocation.column as usize] += 1;
    }
    counts
}

#[test]
fn a_real_trace_becomes_what_it_says() {
    let files = AzureFiles {
        invocations: &include_bytes!("../../testdata/azure/invocations.csv")[..],
        durations: &include_bytes!("../../testdata/azure/durations.csv")[..],
        memory: &include_bytes!("../../testdata/azure/memory.csv")[..],
        dirigent: Some(&include_bytes!("../../testdata/azure/dirigent.csv")[..]),
    };
    let trace = Trace::read(files).unwrap();
    let plan = schedule(&trace, &options(30)).unwrap();
    plan.check().unwrap();
    // One of the seven is silent.
    assert_eq!((plan.functions.len(), plan.invocations.len()), (6, 267));
    assert_eq!((plan.span_us, plan.warm_up_us), (30 * MINUTE_US, 0));
    for function in &trace.functions {
        assert_eq!(counts(&plan, &function.name, 30), function.invocations);
    }
    // A part of it is the same invocations, earlier.
    let part = schedule(&trace, &ScheduleOptions { from: 10, ..options(20) }).unwrap();
    let name = |plan: &Plan, i: &Invocation| plan.functions[i.function as usize].name.clone();
    let later = plan.invocations.iter().filter(|i| i.column >= 10);
    let later: Vec<_> =
        later.map(|i| (i.at_us - 10 * MINUTE_US, name(&plan, i), i.execution_ms, i.memory_mib)).collect();
    let of_part: Vec<_> =
        part.invocations.iter().map(|i| (i.at_us, name(&part, i), i.execution_ms, i.memory_mib)).collect();
    assert_eq!(of_part, later);
}

#[test]
fn without_a_shift_every_function_fires_as_a_minute_begins() {
    let trace = trace(vec![function("a", &[3, 0, 1]), function("b", &[1, 2, 0])]);
    let plan = schedule(&trace, &ScheduleOptions { shift: false, ..options(3) }).unwrap();
    let firing: Vec<_> = plan
        .invocations
        .iter()
        .filter(|i| i.at_us % MINUTE_US == 0)
        .map(|i| (i.column, i.function))
        .collect();
    assert_eq!(firing, [(0, 0), (0, 1), (1, 1), (2, 0)]);
    let equal =
        schedule(&trace, &ScheduleOptions { shift: false, gaps: Gaps::Equidistant, ..options(1) }).unwrap();
    let of_a: Vec<_> = equal.invocations.iter().filter(|i| i.function == 0).map(|i| i.at_us).collect();
    assert_eq!(of_a, [0, 20_000_000, 40_000_000]);
}

#[test]
fn demands_are_clamped_as_invitro_clamps_them_and_then_scaled() {
    let trace = trace(vec![function("a", &[20_000])]);
    let plan = schedule(&trace, &options(1)).unwrap();
    let shortest = plan.invocations.iter().map(|i| i.execution_ms).min();
    let longest = plan.invocations.iter().map(|i| i.execution_ms).max();
    assert_eq!((shortest, longest), (Some(1), Some(60_000)));
    let least = plan.invocations.iter().map(|i| i.memory_mib).min();
    let most = plan.invocations.iter().map(|i| i.memory_mib).max();
    assert_eq!((least, most), (Some(1), Some(10_240)));
    let below_median = plan.invocations.iter().filter(|i| i.execution_ms <= 100).count();
    assert!((9_700..10_300).contains(&below_median), "{below_median}");
    let tenth = schedule(&trace, &ScheduleOptions { duration_scale: 0.1, ..options(1) }).unwrap();
    for (whole, scaled) in plan.invocations.iter().zip(&tenth.invocations) {
        assert_eq!((whole.at_us, whole.memory_mib), (scaled.at_us, scaled.memory_mib));
        assert_eq!(scaled.execution_ms, ((f64::from(whole.execution_ms) * 0.1).round() as u32).max(1));
    }
}

#[test]
fn warm_up_begins_with_what_the_first_minute_keeps_busy() {
    // 120 a minute of 1.5 s each keep three busy.
    let trace = trace(vec![function("a", &[120, 7, 0]), function("b", &[0, 0, 1])]);
    let plan = schedule(&trace, &ScheduleOptions { warm_up: 2, ..options(3) }).unwrap();
    assert_eq!(plan.warm_up_us, 2 * MINUTE_US);
    assert_eq!(plan.functions.iter().map(|f| f.initial).collect::<Vec<_>>(), [3, 0]);
    assert_eq!(plan.invocations.iter().filter(|i| plan.is_warm_up(i)).count(), 127);
    assert!(schedule(&trace, &options(3)).unwrap().functions.iter().all(|f| f.initial == 0));
    let fast = ScheduleOptions { warm_up: 1, granularity: Granularity::Second, ..options(3) };
    let fast = schedule(&trace, &fast).unwrap();
    assert_eq!((fast.span_us, fast.warm_up_us, fast.functions[0].initial), (3_000_000, 1_000_000, 180));
}

#[test]
fn another_function_shifts_nobodys_draws() {
    let (a, b) = (function("a", &[9, 4]), function("b", &[5, 8]));
    let of_a = |plan: &Plan| {
        let a = plan.functions.iter().position(|f| f.name == "a").unwrap();
        let of = plan.invocations.iter().filter(|i| i.function as usize == a);
        of.map(|i| (i.at_us, i.execution_ms, i.memory_mib)).collect::<Vec<_>>()
    };
    let alone = schedule(&trace(vec![a.clone()]), &options(2)).unwrap();
    let both = schedule(&trace(vec![b, a]), &options(2)).unwrap();
    assert_eq!(of_a(&alone), of_a(&both));
    let other =
        schedule(&trace(vec![function("a", &[9, 4])]), &ScheduleOptions { seed: 43, ..options(2) }).unwrap();
    assert_ne!(of_a(&alone), of_a(&other));
}

#[test]
fn what_is_not_in_the_trace_or_over_a_limit_is_refused() {
    let two = trace(vec![function("a", &[1, 1])]);
    let cases = [
        (ScheduleOptions { from: 1, ..options(2) }, "2 from 1 on are not among them"),
        (ScheduleOptions { from: usize::MAX, ..options(2) }, "are not among them"),
        (options(0), "are not among them"),
        (ScheduleOptions { warm_up: 3, ..options(2) }, "3 minutes of warm-up"),
        (
            ScheduleOptions { rate_scale: 0.0, ..options(2) },
            "the scale of rates is from 0.001 to 1000, and not 0",
        ),
        (ScheduleOptions { duration_scale: f64::NAN, ..options(2) }, "the scale of durations"),
    ];
    for (options, expected) in cases {
        let told = schedule(&two, &options).unwrap_err().to_string();
        assert!(told.contains(expected), "{told}");
    }
    let many = trace(vec![function("a", &[3_000_000]), function("b", &[2_000_001])]);
    let told = schedule(&many, &options(1)).unwrap_err().to_string();
    assert!(told.contains("more than 5000000 invocations"), "{told}");
}

proptest! {
    #[test]
    fn counts_times_and_functions_are_the_traces(
        rows in proptest::collection::vec(proptest::collection::vec(0..40_u32, 4), 1..6),
        seed: u64, shift: bool, which in 0..3_usize, second: bool
    ) {
        let functions = rows.iter().enumerate().map(|(n, row)| function(&format!("f{n}"), row)).collect();
        let trace = trace(functions);
        let gaps = [Gaps::Exponential, Gaps::Uniform, Gaps::Equidistant][which];
        let granularity = if second { Granularity::Second } else { Granularity::Minute };
        let options = ScheduleOptions { gaps, granularity, shift, seed, ..options(4) };
        let plan = schedule(&trace, &options).unwrap();
        plan.check().unwrap();
        prop_assert_eq!(&plan, &schedule(&trace, &options).unwrap());
        for function in &trace.functions {
            prop_assert_eq!(counts(&plan, &function.name, 4), function.invocations.clone());
        }
        let column_us = granularity.column_us();
        prop_assert!(plan.invocations.iter().all(|i| i.at_us / column_us == u64::from(i.column)));
    }

    /// Every function keeps its share: of any beginning of its row the scaled part is within one invocation of what it
    /// should be, and over many seeds it is that on average.
    #[test]
    fn a_scale_conserves_every_functions_share(
        row in proptest::collection::vec(0..1_000_u32, 1..40), scale in 0.001..20.0_f64, seed: u64
    ) {
        let options = ScheduleOptions { rate_scale: scale, seed, ..options(row.len()) };
        let scaled = scaled(&row, &options, "f");
        let (mut sum, mut given) = (0.0, 0.0);
        for (count, now) in row.iter().zip(&scaled) {
            sum += f64::from(*count);
            given += f64::from(*now);
            prop_assert!((given - sum * scale).abs() < 1.0 + 1e-6, "{given} of {}", sum * scale);
        }
        let total = sum * scale;
        let many: f64 = (0..400)
            .map(|seed| super::scaled(&row, &ScheduleOptions { seed, ..options.clone() }, "f"))
            .map(|counts| counts.iter().map(|count| f64::from(*count)).sum::<f64>())
            .sum();
        prop_assert!((many / 400.0 - total).abs() < 0.2, "{} of {total}", many / 400.0);
    }
}
