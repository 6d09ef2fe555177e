//! `Server-Timing`: where the platform says that a request's time went.

/// Stages of a cold start, in the order in which they happen. `queue` is the wait as a whole: the ones after it, up to
/// `propagate`, are its parts.
pub const STAGES: [&str; 9] =
    ["queue", "decide", "place", "transfer", "create", "start", "ready", "propagate", "execute"];

/// Milliseconds of each of [`STAGES`]; 0 of one that is not in the header.
#[must_use]
pub fn stages(header: &str) -> [f32; STAGES.len()] {
    let mut stages = [0.0; STAGES.len()];
    for (name, millis) in entries(header) {
        if let Some(at) = STAGES.iter().position(|stage| *stage == name) {
            stages[at] = millis as f32;
        }
    }
    stages
}

/// Name and milliseconds of each entry of the header.
pub fn entries(header: &str) -> impl Iterator<Item = (&str, f64)> {
    header.split(',').filter_map(|entry| {
        let (name, rest) = entry.trim().split_once(';')?;
        let duration = rest.split(';').find_map(|parameter| parameter.trim().strip_prefix("dur="))?;
        Some((name, duration.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_with_a_duration_are_read() {
        let header = "queue;dur=2.5;desc=cold, create;dur=0.7,new, execute;desc=x;dur=1, bad;dur=x";
        let read: Vec<_> = entries(header).collect();
        assert_eq!(read, [("queue", 2.5), ("create", 0.7), ("execute", 1.0)]);
        assert_eq!(entries("").count(), 0);
        let stages = stages(header);
        assert_eq!((stages[0], stages[4], stages[5], stages[8]), (2.5, 0.7, 0.0, 1.0));
    }
}
