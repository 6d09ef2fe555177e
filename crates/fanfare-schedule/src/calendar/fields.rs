//! What each field of a cron expression may have.
//!
//! The parser knows the bounds, but not how to say them; and it takes the names of months and days in every field.

/// A field: what it is, its numbers, its names in the order of these, and other letters that mean something there.
struct Field {
    what: &'static str,
    numbers: (u32, u32),
    names: &'static [&'static str],
    letters: &'static str,
    allowed: &'static str,
}

const FIELDS: [Field; 6] = [
    Field { what: "second", numbers: (0, 59), names: &[], letters: "", allowed: "0 to 59" },
    Field { what: "minute", numbers: (0, 59), names: &[], letters: "", allowed: "0 to 59" },
    Field { what: "hour", numbers: (0, 23), names: &[], letters: "", allowed: "0 to 23" },
    Field {
        what: "day of the month",
        numbers: (1, 31),
        names: &[],
        letters: "LW",
        allowed: "1 to 31, L or W",
    },
    Field {
        what: "month",
        numbers: (1, 12),
        names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
        letters: "",
        allowed: "1 to 12, or JAN to DEC",
    },
    Field {
        what: "day of the week",
        numbers: (0, 7),
        names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        letters: "L",
        allowed: "0 to 7, or SUN to SAT",
    },
];

/// What is wrong with the number of fields, or with a number or a name in one of them, if that is what is wrong.
pub(super) fn wrong(expression: &str) -> Option<String> {
    let given: Vec<&str> = expression.split_whitespace().collect();
    // Of `@daily` and its kin the parser speaks.
    if given.first().is_some_and(|first| first.starts_with('@')) {
        return None;
    }
    let fields = FIELDS.len().checked_sub(given.len()).filter(|_| given.len() >= 5);
    let Some(fields) = fields.and_then(|first| FIELDS.get(first..)) else {
        return Some(format!(
            "the number of its fields is {}; it may be 5 (minute, hour, day of the month, month, day of the week), or 6 with \
             the second before them",
            given.len()
        ));
    };
    fields.iter().zip(given).find_map(|(field, given)| {
        let bad = given.split(',').find_map(|item| bad_part(field, item))?;
        Some(format!("the {} is {bad:?}; it may be {}", field.what, field.allowed))
    })
}

/// The part of an item that its field does not have: what is behind `/` or `#` is a step or a count.
fn bad_part<'a>(field: &Field, item: &'a str) -> Option<&'a str> {
    let what = item.split(['/', '#']).next().unwrap_or_default();
    what.split('-').find(|part| {
        let (min, max) = field.numbers;
        let is_letter = |c: char| field.letters.contains(c.to_ascii_uppercase());
        let number = part.trim_matches(is_letter);
        let is_name = field.names.iter().any(|name| name.eq_ignore_ascii_case(number));
        let is_number = number.parse().is_ok_and(|number: u32| (min..=max).contains(&number));
        let speaks = number.chars().any(|c| c.is_ascii_alphanumeric());
        speaks && !is_name && !is_number
    })
}
