use proptest::prelude::*;

use super::*;

fn wall(time: &str) -> Wall {
    match Calendar::at(time).unwrap() {
        Calendar::At(wall) => wall,
        Calendar::Cron { .. } => unreachable!("`at` makes an instant"),
    }
}

fn cron(expression: &str, zone: &str) -> Calendar {
    Calendar::cron(expression, zone, Wall(0)).unwrap()
}

/// What comes after a time: expression, zone, time, the next instants.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str]);
const CASES: &[Case] = &[
    ("*/5 * * * *", "UTC", "2030-01-01T00:01:00Z", &["2030-01-01T00:05:00Z", "2030-01-01T00:10:00Z"]),
    ("*/10 * * * * *", "UTC", "2030-01-01T00:00:09.999Z", &["2030-01-01T00:00:10Z", "2030-01-01T00:00:20Z"]),
    ("0 9 * * MON-FRI", "America/New_York", "2030-01-04T14:00:00Z", &["2030-01-07T14:00:00Z"]),
    ("@daily", "Asia/Kolkata", "2030-01-01T00:00:00Z", &["2030-01-01T18:30:00Z", "2030-01-02T18:30:00Z"]),
    ("0 0 29 2 *", "UTC", "2029-01-01T00:00:00Z", &["2032-02-29T00:00:00Z", "2036-02-29T00:00:00Z"]),
    ("0 0 L * *", "UTC", "2030-01-31T00:00:00Z", &["2030-02-28T00:00:00Z", "2030-03-31T00:00:00Z"]),
    // Zurich goes to summer time on 2030-03-31: at 2:00 it is 3:00. What is planned for 2:30 comes at 3:00, once.
    (
        "30 2 * * *",
        "Europe/Zurich",
        "2030-03-30T00:00:00Z",
        &["2030-03-30T01:30:00Z", "2030-03-31T01:00:00Z", "2030-04-01T00:30:00Z"],
    ),
    // And back on 2030-10-27: 2:30 comes twice, and counts the first time.
    (
        "30 2 * * *",
        "Europe/Zurich",
        "2030-10-26T00:00:00Z",
        &["2030-10-26T00:30:00Z", "2030-10-27T00:30:00Z", "2030-10-28T01:30:00Z"],
    ),
    // An interval goes by real time through both.
    (
        "*/30 * * * *",
        "Europe/Zurich",
        "2030-03-31T00:15:00Z",
        &["2030-03-31T00:30:00Z", "2030-03-31T01:00:00Z", "2030-03-31T01:30:00Z"],
    ),
    (
        "*/30 * * * *",
        "Europe/Zurich",
        "2030-10-27T00:15:00Z",
        &["2030-10-27T00:30:00Z", "2030-10-27T01:00:00Z", "2030-10-27T01:30:00Z", "2030-10-27T02:00:00Z"],
    ),
];

#[test]
fn r11_cron_in_time_zones_over_both_changes_of_the_clock() {
    for (expression, zone, after, expected) in CASES {
        let found = cron(expression, zone).upcoming(wall(after), expected.len());
        let found: Vec<String> = found.iter().map(Wall::to_string).collect();
        assert_eq!(found, *expected, "{expression} in {zone} after {after}");
    }
}

#[test]
fn every_day_of_a_year_has_its_half_past_two() {
    let days = cron("30 2 * * *", "Europe/Zurich").upcoming(wall("2029-12-31T23:00:00Z"), 365);
    assert!(days.windows(2).all(|pair| (23..=25).contains(&((pair[1].0 - pair[0].0) / 3_600_000))));
    assert!(days[364] < wall("2030-12-31T23:00:00Z"), "365 of them within the year");
}

#[test]
fn an_instant_comes_once() {
    let at = Calendar::at("2030-06-01T12:00:00+02:00").unwrap();
    let time = wall("2030-06-01T10:00:00Z");
    assert_eq!(at.next_after(Wall(time.0 - 1)), Some(time));
    assert_eq!(at.next_after(time), None);
    assert_eq!(at.last_within(Wall(time.0 - 1), time), Some(time));
    assert_eq!(at.last_within(time, Wall(time.0 + 9)), None);
}

#[test]
fn instants_are_shown_by_their_own_clock() {
    let zurich = cron("30 2 * * *", "Europe/Zurich");
    assert_eq!(zurich.local(wall("2030-03-31T00:30:00Z")), "2030-03-31T01:30:00+01:00");
    assert_eq!(zurich.local(wall("2030-03-31T01:00:00Z")), "2030-03-31T03:00:00+02:00");
    assert_eq!(cron("* * * * *", "UTC").local(wall("2030-03-31T01:00:00Z")), "2030-03-31T01:00:00Z");
    assert_eq!(Calendar::At(Wall(0)).local(wall("2030-03-31T01:00:00.5Z")), "2030-03-31T01:00:00.500Z");
}

#[test]
fn a_field_has_its_bounds_and_no_other_fields_names() {
    for (expression, says) in [
        ("1 2 * *", "the number of its fields is 4; it may be 5 (minute, hour, day of the month"),
        ("* * * * * * *", "the number of its fields is 7; it may be 5"),
        ("60 * * * *", "the minute is \"60\"; it may be 0 to 59"),
        ("* 24 * * *", "the hour is \"24\"; it may be 0 to 23"),
        ("0 0 0 * *", "the day of the month is \"0\"; it may be 1 to 31, L or W"),
        ("* * * 13 *", "the month is \"13\"; it may be 1 to 12, or JAN to DEC"),
        ("* * * * 8", "the day of the week is \"8\"; it may be 0 to 7, or SUN to SAT"),
        ("61 * * * * *", "the second is \"61\"; it may be 0 to 59"),
        ("1,5-70/2 * * * *", "the minute is \"70\""),
        ("JAN * * * *", "the minute is \"JAN\""),
        ("0 MON * * *", "the hour is \"MON\""),
        ("0 0 feb * *", "the day of the month is \"feb\""),
        ("0 0 * SUN *", "the month is \"SUN\""),
        ("0 0 * * JAN", "the day of the week is \"JAN\""),
        ("L * * * *", "the minute is \"L\""),
    ] {
        let error = Calendar::cron(expression, "UTC", Wall(0)).expect_err(expression).to_string();
        assert!(error.contains(says), "{expression}: {error}");
    }
    for expression in [
        "0 0 L * *",
        "0 0 15W * *",
        "0 0 LW * *",
        "0 0 * JAN-MAR,dec *",
        "0 0 * * mon-FRI",
        "0 0 * * FRI#2",
        "0 0 * * 5#L",
        "0 0 * * 5L",
        "0 0 ? * 7",
        "*/90 * * * *",
        "0-59/7 0-23 1-31 1-12 0-7",
        "@daily",
        "@Hourly",
    ] {
        let ours = super::fields::wrong(expression);
        assert_eq!(ours, None, "{expression}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_is_wrong() {
    let refused = |expression: &str, zone: &str| Calendar::cron(expression, zone, Wall(0)).unwrap_err();
    for expression in [
        "",
        "* * * *",
        "* * * * * * *",
        "61 * * * *",
        "a b c d e",
        "* * * * 9",
        ",,, 1-3 * * 0-5",
        "1, * * * *",
    ] {
        assert!(matches!(refused(expression, "UTC"), CalendarError::Expression { .. }), "{expression}");
    }
    assert!(matches!(refused("0 0 30 2 *", "UTC"), CalendarError::Never { .. }));
    assert!(matches!(refused("* * * * *", "Mars/Base"), CalendarError::Zone { .. }));
    assert!(matches!(
        refused(&"*".repeat(300), "UTC"),
        CalendarError::TooLong { bytes: 300, limit: 256, .. }
    ));
    for time in
        ["", "tomorrow", "2030-01-01", "2030-01-01T00:00:00", "1969-12-31T23:59:59Z", "2030-13-01T00:00:00Z"]
    {
        assert!(matches!(Calendar::at(time), Err(CalendarError::Time { .. })), "{time}");
    }
}

proptest! {
    /// Instants come in order, none is skipped when one asks from anywhere between, and the way back agrees.
    #[test]
    fn instants_are_the_same_from_wherever_one_asks(
        which in prop::sample::select(vec![
            "*/7 * * * *", "0 */3 * * *", "30 2 * * *", "15,45 1-3 * * *", "0 0 1 * *", "*/20 * * * * *", "0 12 * * SUN",
        ]),
        zone in prop::sample::select(vec!["UTC", "Europe/Zurich", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu"]),
        start in 1_700_000_000_000_u64..2_000_000_000_000,
        part in 0.0..1.0_f64,
    ) {
        let calendar = cron(which, zone);
        let found = calendar.upcoming(Wall(start), 4);
        prop_assert_eq!(found.len(), 4);
        for pair in found.windows(2) {
            prop_assert!(pair[0] < pair[1]);
            let between = Wall(pair[0].0 + ((pair[1].0 - pair[0].0 - 1) as f64 * part) as u64);
            prop_assert_eq!(calendar.next_after(between), Some(pair[1]));
            prop_assert_eq!(calendar.last_within(Wall(pair[0].0 - 1), between), Some(pair[0]));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(expression in ".{0,40}", zone in ".{0,20}", time in ".{0,40}") {
        let _ = (Calendar::cron(&expression, &zone, Wall(0)), Calendar::cron(&expression, "UTC", Wall(0)), Calendar::at(&time));
    }
}
