use proptest::prelude::*;

use super::*;

const FILE: &str = "\
fanfare-plan,1
seed,7
source,\"a trace, of two\"
span_us,2000000
warm_up_us,1000000
functions,2
name,memory_mib,initial,min,max
a,20,1,0,10
b,170,0,0,0
invocations,3
at_us,function,execution_ms,memory_mib,column
0,1,10,20,0
999999,0,60000,1,0
1000000,1,1,10240,1
";

fn read(text: &str) -> Result<Plan, TraceError> {
    Plan::read("plan.csv", text.as_bytes())
}

fn written(plan: &Plan) -> String {
    let mut out = Vec::new();
    plan.write(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_plan_is_read_and_written_as_it_is() {
    let plan = read(FILE).unwrap();
    assert_eq!((plan.seed, plan.source.as_str(), plan.warm_up_us), (7, "a trace, of two", 1_000_000));
    let b = PlanFunction { name: "b".into(), memory_mib: 170, initial: 0, min: 0, max: 0 };
    assert_eq!(plan.functions[1], b);
    let last = Invocation { at_us: 1_000_000, function: 1, execution_ms: 1, memory_mib: 10_240, column: 1 };
    assert_eq!(plan.invocations[2], last);
    assert!(plan.is_warm_up(&plan.invocations[1]) && !plan.is_warm_up(&plan.invocations[2]));
    assert_eq!(written(&plan), FILE);
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_value() {
    let cases = [
        (
            "fanfare-plan,1",
            "fanfare-plan,2",
            "line 1, the form's version: \"2\" is no whole number from 1 to 1",
        ),
        ("fanfare-plan,1", "fanfare-plot,1", "line 1: a plan begins with fanfare-plan,1"),
        ("seed,7", "seed,-7", "line 2, seed: \"-7\" is no whole number"),
        ("seed,7\n", "", "line 2, setting: \"source\" stands where seed should be"),
        ("functions,2", "functions,50001", "line 6, functions: \"50001\" is no whole number from 0 to 50000"),
        ("name,memory_mib", "title,memory_mib", "line 7: the header is not name,memory_mib"),
        ("a,20,1,0,10", "a,20,1,0", "line 8: there are 4 fields where 5 should be"),
        ("a,20,1,0,10", ",20,1,0,10", "function 0: its name \"\""),
        ("a,20,1,0,10", "a,20,1,11,10", "at least 11 and at most 10 sandboxes"),
        ("999999,0,60000", "999999,2,60000", "line 13: it calls function 2, and there are 2"),
        (
            "999999,0,60000",
            "999999,0,60001",
            "line 13, execution_ms: \"60001\" is no whole number from 0 to 60000",
        ),
        ("1000000,1,1,", "999998,1,1,", "line 14: it is due at 999998 µs, before"),
        ("1000000,1,1,", "2000000,1,1,", "line 14: it is due at 2000000 µs, and the plan lasts 2000000 µs"),
        ("invocations,3", "invocations,4", "line 15: the file ends where an invocation should be"),
        ("invocations,3", "invocations,2", "line 14: there is more after the 2 invocations"),
    ];
    for (good, bad, expected) in cases {
        let text = FILE.replacen(good, bad, 1);
        assert_ne!(text, FILE, "{good}");
        let told = read(&text).unwrap_err().to_string();
        assert!(told.starts_with("plan.csv, line ") && told.contains(expected), "{bad}: {told}");
    }
    assert!(read("").unwrap_err().to_string().contains("ends where a plan's first line should be"));
}

prop_compose! {
    fn plans()(
        seed: u64, source in "[ -~]{0,40}", names in proptest::collection::vec("[a-z0-9,\"-]{1,20}", 1..5),
        mut times in proptest::collection::vec(0..SPAN_US_MAX, 0..40), warm_up_us in 0..SPAN_US_MAX
    ) -> Plan {
        times.sort_unstable();
        let count = names.len() as u64;
        let function = |name| PlanFunction { name, memory_mib: 3, initial: 2, min: 1, max: 9 };
        let invocation = |at_us: u64| Invocation {
            at_us,
            function: (at_us % count) as u32,
            execution_ms: (at_us % u64::from(EXECUTION_MS_MAX)) as u32,
            memory_mib: (at_us % u64::from(MEMORY_MIB_MAX)) as u32,
            column: (at_us / 60_000_000) as u32,
        };
        Plan {
            seed,
            source,
            span_us: SPAN_US_MAX,
            warm_up_us,
            functions: names.into_iter().map(function).collect(),
            invocations: times.into_iter().map(invocation).collect(),
        }
    }
}

proptest! {
    #[test]
    fn every_plan_survives_its_file(plan in plans()) {
        let text = written(&plan);
        prop_assert_eq!(read(&text).unwrap(), plan);
        // And none that is cut short is taken for a whole one, unless only its last line break is missing.
        let cut = text.len() / 2;
        prop_assert!(read(&text[..text.floor_char_boundary(cut)]).is_err());
    }

    #[test]
    fn no_text_breaks_the_reader(text in "[a-z0-9_,\"\n-]{0,300}", at in 0..FILE.len()) {
        let _ = read(&text);
        let mut mixed = FILE.to_owned();
        mixed.insert_str(at, &text);
        if let Ok(plan) = read(&mixed) {
            plan.check().unwrap();
        }
    }
}
