//! `Server-Timing`: where the platform says that a request's time went.

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
    }
}
