use proptest::prelude::*;

use super::*;

const INVOCATIONS: &str = include_str!("../../testdata/azure/invocations.csv");
const DURATIONS: &str = include_str!("../../testdata/azure/durations.csv");
const MEMORY: &str = include_str!("../../testdata/azure/memory.csv");
const DIRIGENT: &str = include_str!("../../testdata/azure/dirigent.csv");

fn read(
    invocations: &str,
    durations: &str,
    memory: &str,
    dirigent: Option<&str>,
) -> Result<Trace, TraceError> {
    Trace::read(AzureFiles {
        invocations: invocations.as_bytes(),
        durations: durations.as_bytes(),
        memory: memory.as_bytes(),
        dirigent: dirigent.map(str::as_bytes),
    })
}

#[test]
fn real_rows_are_read_whole() {
    let trace = read(INVOCATIONS, DURATIONS, MEMORY, Some(DIRIGENT)).unwrap();
    assert_eq!((trace.first_column, trace.columns, trace.functions.len()), (480, 30, 7));
    assert_eq!(trace.repairs, Repairs::default());
    let total: u32 = trace.functions.iter().flat_map(|function| &function.invocations).sum();
    assert_eq!(total, 267);
    let bounds = Some(ScaleBounds { min: 0, max: 10_000 });
    assert!(trace.functions.iter().all(|function| function.bounds == bounds));
    let busiest =
        trace.functions.iter().max_by_key(|function| function.invocations.iter().sum::<u32>()).unwrap();
    assert_eq!(busiest.invocations[..3], [6, 6, 6]);
    assert!(busiest.duration_ms.at(1.0) >= busiest.duration_ms.at(0.5));
    // Without the optional file nothing is bounded.
    let trace = read(INVOCATIONS, DURATIONS, MEMORY, None).unwrap();
    assert!(trace.functions.iter().all(|function| function.bounds.is_none()));
}

const SMALL: [&str; 3] = [
    "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,3,0\no,a,g,timer,1,2\n",
    "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_Average_1,\
     percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100\n\
     o,a,f,5,1,0,9,0,1,2,5,7,8,9\no,a,g,5,1,0,9,0,1,2,5,7,8,9\n",
    "HashOwner,HashApp,HashFunction,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1,AverageAllocatedMb_pct5,\
     AverageAllocatedMb_pct25,AverageAllocatedMb_pct50,AverageAllocatedMb_pct75,AverageAllocatedMb_pct95,\
     AverageAllocatedMb_pct99,AverageAllocatedMb_pct100\n\
     o,a,f,1,20.5,1,2,3,4,5,6,7,8\no,a,g,1,20.5,1,2,3,4,5,6,7,8\n",
];

fn changed(file: usize, good: &str, bad: &str) -> Result<Trace, TraceError> {
    let mut files = SMALL.map(ToOwned::to_owned);
    assert!(files[file].contains(good), "{good}");
    files[file] = files[file].replacen(good, bad, 1);
    read(&files[0], &files[1], &files[2], None)
}

#[test]
fn what_is_wrong_is_named_with_file_line_column_and_value() {
    let cases = [
        (0, "http,3,0", "http,3,x", "invocations.csv, line 2, 2: \"x\" is no whole number from 0"),
        (0, "http,3,0", "http,-3,0", "invocations.csv, line 2, 1: \"-3\" is no whole number"),
        (0, "timer,1,2", "timer,1", "invocations.csv, line 3: there are 5 fields where 6 should be"),
        (0, "HashFunction", "Function", "invocations.csv, line 1: there is no column HashFunction"),
        (
            0,
            "Trigger,1,2",
            "Trigger,1,3",
            "invocations.csv, line 1, the header: \"3\" stands where 2 should be",
        ),
        (0, "Trigger,1,2", "Trigger,a,b", "there is no column whose name is a number of minutes"),
        (0, "o,a,f", "o,a,f g", "line 2, HashFunction: \"f g\" is no name"),
        (
            1,
            "percentile_Average_99",
            "p99",
            "durations.csv, line 1: there is no column percentile_Average_99",
        ),
        (1, "o,a,g,5", "o,a,g,nan", "durations.csv, line 3, Average: \"nan\" is no number"),
        (
            2,
            "20.5,1,2,3",
            "20.5,1,2,many",
            "memory.csv, line 2, AverageAllocatedMb_pct25: \"many\" is no number",
        ),
    ];
    for (file, good, bad, expected) in cases {
        let told = changed(file, good, bad).unwrap_err().to_string();
        assert!(told.contains(expected), "{bad}: {told}");
    }
    for empty in 0..3 {
        let mut files = SMALL;
        files[empty] = "";
        let told = read(files[0], files[1], files[2], None).unwrap_err().to_string();
        assert!(told.ends_with("line 1: the file ends where the header should be"), "{told}");
    }
    let told =
        read(SMALL[0], SMALL[1], SMALL[2], Some("HashFunction,ScalingUpperBound,ScalingLowerBound\nf,1,2\n"));
    let told = told.unwrap_err().to_string();
    assert_eq!(told, "dirigent.csv, line 2, ScalingLowerBound: \"2\" is no whole number from 0 to 1");
}

#[test]
fn what_is_missing_or_double_is_left_out_and_counted() {
    assert_eq!(
        changed(1, "o,a,g,5", "o,a,h,5").unwrap().repairs,
        Repairs { without_durations: 1, ..Repairs::default() }
    );
    assert_eq!(
        changed(2, "o,a,g,1", "o,a,h,1").unwrap().repairs,
        Repairs { without_memory: 1, ..Repairs::default() }
    );
    let double = changed(0, "o,a,g,timer", "o,a,f,timer").unwrap();
    assert_eq!((double.functions.len(), double.repairs.duplicates), (1, 1));
    assert_eq!(double.functions[0].invocations, [3, 0]);
    let odd = changed(1, "o,a,f,5,1,0,9,0,1,2", "o,a,f,-5,1,0,9,0,7,2").unwrap();
    assert_eq!((odd.repairs.negative, odd.repairs.unsorted), (1, 1));
    assert_eq!((odd.functions[0].duration_average_ms, odd.functions[0].duration_ms.at(0.25)), (0.0, 7.0));
}

proptest! {
    #[test]
    fn no_text_breaks_the_reader(text in "[a-zA-Z0-9_,.\"\n-]{0,200}", file in 0..3_usize, at in 0..60_usize) {
        let mut files = SMALL.map(ToOwned::to_owned);
        files[file].insert_str(at, &text);
        if let Ok(trace) = read(&files[0], &files[1], &files[2], Some(&text)) {
            prop_assert!(trace.functions.iter().all(|function| function.invocations.len() == trace.columns));
        }
    }
}
