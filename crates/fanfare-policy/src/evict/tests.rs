use super::*;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_secs(1_000);

/// Function, idle, ready, minimum, idle for so many seconds, memory of each; 10 mCPU each.
fn idle(function: u32, idle_sandboxes: u32, ready: u32, min: u32, secs: u64, memory: u64) -> IdleFunction {
    IdleFunction {
        function: FunctionId(function),
        idle_sandboxes,
        ready,
        min,
        idle_since: NOW - Duration::from_secs(secs),
        request: Resources::new(10, memory),
    }
}

fn chosen(functions: &[IdleFunction], need: Resources) -> Vec<(u32, u32)> {
    let victims = choose_victims(functions, need, NOW, Duration::from_secs(5));
    victims.iter().map(|v| (v.function.0, v.sandboxes)).collect()
}

#[test]
fn cases() {
    let memory = |bytes| Resources::new(0, bytes);
    type Case = (&'static str, Vec<IdleFunction>, Resources, &'static [(u32, u32)]);
    let cases: [Case; 13] = [
        ("nothing is needed", vec![idle(1, 5, 5, 0, 60, 16)], Resources::ZERO, &[]),
        ("nobody is idle", vec![], memory(1), &[]),
        ("just enough", vec![idle(1, 5, 5, 0, 60, 16)], memory(33), &[(1, 3)]),
        ("not enough, so nothing", vec![idle(1, 5, 5, 0, 60, 16)], memory(81), &[]),
        (
            "the longest idle first",
            vec![idle(1, 2, 3, 0, 60, 16), idle(2, 2, 3, 0, 90, 16)],
            memory(48),
            &[(2, 2), (1, 1)],
        ),
        (
            "spare ones before a last one",
            vec![idle(1, 1, 1, 0, 900, 16), idle(2, 3, 3, 0, 6, 16)],
            memory(32),
            &[(2, 2)],
        ),
        (
            "last ones when it must be",
            vec![idle(1, 1, 1, 0, 900, 16), idle(2, 3, 3, 0, 6, 16)],
            memory(48),
            &[(2, 2), (1, 1)],
        ),
        ("a busy one keeps the function warm", vec![idle(1, 1, 2, 0, 60, 16)], memory(16), &[(1, 1)]),
        ("never below the minimum", vec![idle(1, 5, 5, 3, 60, 16)], memory(48), &[]),
        ("down to the minimum", vec![idle(1, 5, 5, 3, 60, 16)], memory(32), &[(1, 2)]),
        ("too young", vec![idle(1, 5, 5, 0, 4, 16)], memory(1), &[]),
        ("old enough", vec![idle(1, 5, 5, 0, 5, 16)], memory(1), &[(1, 1)]),
        (
            "one large one spares the small ones",
            vec![idle(1, 3, 4, 0, 90, 16), idle(2, 1, 2, 0, 60, 512)],
            memory(512),
            &[(2, 1)],
        ),
    ];
    for (name, functions, need, want) in cases {
        assert_eq!(chosen(&functions, need), want, "{name}");
    }
}

#[test]
fn both_resources_are_covered_and_what_frees_nothing_stays() {
    let no_memory = IdleFunction { request: Resources::new(100, 0), ..idle(1, 9, 10, 0, 900, 0) };
    let no_cpu = IdleFunction { request: Resources::new(0, 64), ..idle(2, 9, 10, 0, 60, 0) };
    assert_eq!(chosen(&[no_memory, no_cpu], Resources::new(150, 65)), [(1, 2), (2, 2)]);
    assert_eq!(chosen(&[no_memory, no_cpu], Resources::new(0, 65)), [(2, 2)], "CPU is not what is missing");
    let nothing = IdleFunction { request: Resources::ZERO, ..idle(3, 9, 10, 0, 900, 0) };
    assert_eq!(chosen(&[nothing], Resources::new(1, 0)), []);
}

#[test]
fn reasons() {
    let functions = [idle(1, 1, 1, 0, 900, 16), idle(2, 3, 3, 0, 6, 16)];
    let victims = choose_victims(&functions, Resources::new(0, 64), NOW, Duration::ZERO);
    let reasons: Vec<_> = victims.iter().map(|v| (v.function.0, v.reason.to_string())).collect();
    let want = [
        (2, "the last ready ones, idle for 6 s, and their room was needed".to_owned()),
        (1, "the last ready ones, idle for 15 min, and their room was needed".to_owned()),
    ];
    assert_eq!(reasons, want);
}

fn functions() -> impl Strategy<Value = Vec<IdleFunction>> {
    let one = (0_u32..6, 0_u32..4, 0_u32..4, 0_u64..100, 0_u64..40, 0_u64..40);
    prop::collection::vec(one, 0..12).prop_map(|all| {
        let numbered = (0..).zip(all);
        let with = |(n, (idle_sandboxes, busy, min, secs, cpu, memory)): (u32, _)| IdleFunction {
            request: Resources::new(cpu, memory),
            ..idle(n, idle_sandboxes, idle_sandboxes + busy, min, secs, 0)
        };
        numbered.map(with).collect()
    })
}

fn freed(functions: &[IdleFunction], victims: &[Victim]) -> Resources {
    victims.iter().fold(Resources::ZERO, |sum, v| {
        sum + functions[v.function.0 as usize].request.saturating_mul(v.sandboxes)
    })
}

proptest! {
    #[test]
    fn enough_or_nothing_and_within_the_rules(
        functions in functions(),
        need in (0_u64..150, 0_u64..150),
        keep_alive in 0_u64..50,
    ) {
        let need = Resources::new(need.0, need.1);
        let keep_alive_min = Duration::from_secs(keep_alive);
        let victims = choose_victims(&functions, need, NOW, keep_alive_min);
        let removable = |f: &IdleFunction| f.idle_sandboxes.min(f.ready.saturating_sub(f.min));
        let eligible = |f: &IdleFunction| NOW.since(f.idle_since) >= keep_alive_min;
        for victim in &victims {
            let function = &functions[victim.function.0 as usize];
            prop_assert!(victim.sandboxes > 0 && victim.sandboxes <= removable(function), "{:?}", function);
            prop_assert!(eligible(function), "{:?} was too young", function);
            let stays_warm = function.ready > victim.sandboxes;
            prop_assert_eq!(victim.reason.stays_warm, stays_warm);
        }
        let all = functions.iter().filter(|f| eligible(f));
        let most = all.fold(Resources::ZERO, |sum, f| sum + f.request.saturating_mul(removable(f)));
        prop_assert_eq!(evictable(&functions, NOW, keep_alive_min), most);
        prop_assert_eq!(victims.is_empty(), need == Resources::ZERO || !most.fits(need));
        if !victims.is_empty() {
            prop_assert!(freed(&functions, &victims).fits(need));
        }
        for spared in 0..victims.len() {
            let mut fewer = victims.clone();
            fewer[spared].sandboxes -= 1;
            prop_assert!(!freed(&functions, &fewer).fits(need), "{:?} could have stayed", victims[spared]);
        }
        let mut reordered = functions.clone();
        reordered.reverse();
        prop_assert_eq!(choose_victims(&reordered, need, NOW, keep_alive_min), victims, "whatever the order");
    }

    /// No last ready sandbox goes while a spare one that would do stays.
    #[test]
    fn a_last_one_goes_only_when_the_spare_ones_do_not_suffice(functions in functions(), memory in 1_u64..100) {
        let functions: Vec<_> =
            functions.into_iter().map(|f| IdleFunction { request: Resources::new(0, 10), ..f }).collect();
        let victims = choose_victims(&functions, Resources::new(0, memory), NOW, Duration::ZERO);
        let spare: u32 = functions
            .iter()
            .map(|f| f.idle_sandboxes.min(f.ready.saturating_sub(f.min.max(1))))
            .sum();
        if victims.iter().any(|v| !v.reason.stays_warm) {
            prop_assert!(u64::from(spare) * 10 < memory);
        }
    }
}
