//! Room in memory for requests on their way to the log.
//!
//! Room is taken by bytes that are here, not by lengths that were told. Where there is no more, the request that has
//! been coming for longest makes way, and one client has half of all at most: whoever sends slowly, or says that much
//! will come, keeps nobody out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes of requests that are coming, or are here and not in the log yet.
const BYTES_MAX: u64 = 160 << 20;
/// Those of one client.
const CLIENT_BYTES_MAX: u64 = BYTES_MAX / 2;
/// How long a request may be coming before it makes way for others.
const GRACE: Duration = Duration::from_secs(2);

/// Who has how much room.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    bytes: u64,
    requests: BTreeMap<u64, Coming>,
    /// Those that are not here to their end, the oldest first.
    arriving: BTreeSet<u64>,
    clients: HashMap<IpAddr, Held>,
    next: u64,
}

#[derive(Debug)]
struct Coming {
    client: IpAddr,
    began: Timestamp,
    bytes: u64,
    made_way: Arc<Notify>,
}

/// What one client has.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    requests: usize,
    arriving: BTreeSet<u64>,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All of it is taken.
    All,
    /// What this client may have is.
    Client,
    /// The request had to make way.
    MadeWay,
}

/// Room of one request, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    intake: Arc<Intake>,
    number: u64,
    made_way: Arc<Notify>,
}

impl Intake {
    /// A request begins to come.
    pub(crate) fn begin(self: &Arc<Self>, client: IpAddr, now: Timestamp) -> Taken {
        let (client, made_way) = (network(client), Arc::new(Notify::new()));
        let mut books = self.books.lock();
        let number = books.next;
        books.next += 1;
        books.requests.insert(number, Coming { client, began: now, bytes: 0, made_way: made_way.clone() });
        books.arriving.insert(number);
        let held = books.clients.entry(client).or_default();
        held.requests += 1;
        held.arriving.insert(number);
        Taken { intake: self.clone(), number, made_way }
    }
}

impl Taken {
    /// So many more bytes are here.
    pub(crate) fn grow(&self, bytes: u64, now: Timestamp) -> Result<(), Full> {
        let books = &mut *self.intake.books.lock();
        loop {
            let client = books.requests.get(&self.number).ok_or(Full::MadeWay)?.client;
            let held = books.clients.entry(client).or_default();
            let (among, full) = match held.bytes + bytes > CLIENT_BYTES_MAX {
                true => (&held.arriving, Full::Client),
                false if books.bytes + bytes > BYTES_MAX => (&books.arriving, Full::All),
                false => {
                    held.bytes += bytes;
                    break;
                }
            };
            let oldest = among.iter().find(|number| **number != self.number).copied();
            let is_old = |number: &u64| {
                books.requests.get(number).is_some_and(|coming| now.since(coming.began) >= GRACE)
            };
            let oldest = oldest.filter(is_old).ok_or(full)?;
            if let Some(made_way) = books.remove(oldest) {
                made_way.notify_one();
            }
        }
        books.bytes += bytes;
        if let Some(coming) = books.requests.get_mut(&self.number) {
            coming.bytes += bytes;
        }
        Ok(())
    }

    /// All of it is here: it makes way for nobody any more.
    pub(crate) fn complete(&self) -> Result<(), Full> {
        let mut books = self.intake.books.lock();
        let client = books.requests.get(&self.number).ok_or(Full::MadeWay)?.client;
        books.arriving.remove(&self.number);
        if let Some(held) = books.clients.get_mut(&client) {
            held.arriving.remove(&self.number);
        }
        Ok(())
    }

    /// Resolves when it has had to make way.
    pub(crate) async fn made_way(&self) {
        self.made_way.notified().await;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // What has made way was given back then.
        self.intake.books.lock().remove(self.number);
    }
}

impl Books {
    /// Gives a request's room back; whom to tell.
    fn remove(&mut self, number: u64) -> Option<Arc<Notify>> {
        let Coming { client, bytes, made_way, .. } = self.requests.remove(&number)?;
        self.arriving.remove(&number);
        self.bytes -= bytes;
        if let Some(held) = self.clients.get_mut(&client) {
            held.arriving.remove(&number);
            held.bytes -= bytes;
            held.requests -= 1;
            if held.requests == 0 {
                self.clients.remove(&client);
            }
        }
        Some(made_way)
    }
}

/// Whom an address stands for: whoever has one of IPv6 has 2^64 of them.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whose, limit) = match self {
            Full::All => ("", BYTES_MAX),
            Full::Client => (" from this client's address", CLIENT_BYTES_MAX),
            Full::MadeWay => {
                return f.write_str(
                    "there was no more room for requests of asynchronous invocations, and this one had been \
                     coming for longest",
                );
            }
        };
        let limit = limit >> 20;
        write!(
            f,
            "requests of asynchronous invocations with {limit} MiB{whose} are on their way; no more may be"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn client(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn books(intake: &Intake) -> (u64, usize, usize, usize) {
        let books = intake.books.lock();
        (books.bytes, books.requests.len(), books.arriving.len(), books.clients.len())
    }

    #[test]
    fn room_is_taken_by_what_is_here_and_all_of_it_is_given_back() {
        let intake = Arc::new(Intake::default());
        let many: Vec<_> = (0..100).map(|_| intake.begin(client(1), at(0))).collect();
        assert!(many.iter().all(|taken| taken.grow(1, at(0)).is_ok()), "however much they say will come");
        assert_eq!(books(&intake), (100, 100, 100, 1));
        many[0].complete().unwrap();
        assert_eq!(books(&intake), (100, 100, 99, 1));
        drop(many);
        assert_eq!(books(&intake), (0, 0, 0, 0));
    }

    #[test]
    fn the_one_that_has_been_coming_for_longest_makes_way_but_not_at_once() {
        let intake = Arc::new(Intake::default());
        let old: Vec<_> = (0..160_u8).map(|n| (n, intake.begin(client(n), at(u64::from(n))))).collect();
        old.iter().for_each(|(_, taken)| taken.grow(MIB, at(200)).unwrap());
        let new = intake.begin(client(200), at(1_900));
        assert_eq!(new.grow(MIB, at(1_999)), Err(Full::All), "all of them are young");
        old[0].1.complete().unwrap();
        new.grow(2 * MIB, at(3_000)).unwrap();
        let made_way: Vec<_> =
            old.iter().filter(|(_, taken)| taken.grow(0, at(3_000)).is_err()).map(|(n, _)| *n).collect();
        assert_eq!(made_way, [1, 2], "what is here does not");
        assert_eq!(old[1].1.complete(), Err(Full::MadeWay));
        drop((old, new));
        assert_eq!(books(&intake), (0, 0, 0, 0));
    }

    #[test]
    fn a_client_has_half_and_makes_way_for_itself() {
        let intake = Arc::new(Intake::default());
        let v6 = |last: &str| format!("2001:db8::{last}").parse::<IpAddr>().unwrap();
        let other = intake.begin(client(1), at(0));
        other.grow(MIB, at(0)).unwrap();
        let first = intake.begin(v6("1"), at(0));
        first.grow(CLIENT_BYTES_MAX, at(0)).unwrap();
        let second = intake.begin(v6("2"), at(1));
        assert_eq!(second.grow(1, at(1)), Err(Full::Client));
        second.grow(1, at(2_000)).unwrap();
        assert_eq!(first.grow(1, at(2_000)), Err(Full::MadeWay));
        other.grow(1, at(2_000)).unwrap();
    }
}
