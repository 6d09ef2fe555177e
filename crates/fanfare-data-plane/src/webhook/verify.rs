//! Whether a sender knows the secret.
//!
//! Everything that depends on the secret is compared in constant time, and a refusal says what is missing or malformed,
//! never how much of a signature was right.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fanfare_types::WebhookScheme;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName};
use sha2::Sha256;
use subtle::ConstantTimeEq;

const GITHUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
const GITHUB_DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Before the key of a Standard Webhook, which is base64.
const STANDARD_KEY_PREFIX: &[u8] = b"whsec_";
/// Signatures of one request that are looked at: while a secret is changed there are two.
const SIGNATURES_MAX: usize = 8;
/// Characters of a sender's id of a delivery.
const DELIVERY_LEN_MAX: usize = 200;

/// Why a sender is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unverified {
    #[error("there is no {0}")]
    Missing(&'static str),
    #[error("{0} is given more than once, is malformed, or is too long")]
    Malformed(&'static str),
    #[error(
        "the time in the signature is more than {0:?} from now: it was sent too long ago, or a clock is wrong"
    )]
    Time(Duration),
    #[error("the {0} is not right: the sender has another secret, or the body was changed on its way")]
    Wrong(&'static str),
    #[error("the secret is none of this scheme: {0}")]
    Key(&'static str),
}

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) query: &'a str,
    pub(crate) body: &'a [u8],
}

/// Checks that the sender knows `key`; returns its own id of the delivery, if it gives one. `now_s` is the wall clock,
/// in seconds since 1970.
pub(crate) fn verify(
    scheme: WebhookScheme,
    key: &[u8],
    sent: Sent<'_>,
    now_s: u64,
    tolerance: Duration,
) -> Result<Option<String>, Unverified> {
    match scheme {
        WebhookScheme::Github => github(key, sent),
        WebhookScheme::Stripe => stripe(key, sent, now_s, tolerance).map(|()| None),
        WebhookScheme::Standard => standard(key, sent, now_s, tolerance).map(Some),
        WebhookScheme::Token => token(key, sent),
    }
}

fn github(key: &[u8], sent: Sent<'_>) -> Result<Option<String>, Unverified> {
    const NAME: &str = "X-Hub-Signature-256";
    let given = single(sent.headers, &GITHUB_SIGNATURE, NAME)?.ok_or(Unverified::Missing(NAME))?;
    let signature = given.strip_prefix("sha256=").and_then(from_hex).ok_or(Unverified::Malformed(NAME))?;
    if !is_signed(key, &[sent.body], &signature) {
        return Err(Unverified::Wrong(NAME));
    }
    delivery(sent.headers, &GITHUB_DELIVERY, "X-GitHub-Delivery")
}

fn stripe(key: &[u8], sent: Sent<'_>, now_s: u64, tolerance: Duration) -> Result<(), Unverified> {
    const NAME: &str = "Stripe-Signature";
    let given = single(sent.headers, &STRIPE_SIGNATURE, NAME)?.ok_or(Unverified::Missing(NAME))?;
    let parts = || given.split(',').filter_map(|part| part.trim().split_once('='));
    let mut times = parts().filter(|(name, _)| *name == "t").map(|(_, time)| time);
    let (Some(time), None) = (times.next(), times.next()) else { return Err(Unverified::Malformed(NAME)) };
    let at = seconds(time).ok_or(Unverified::Malformed(NAME))?;
    let signatures = parts().filter(|(name, _)| *name == "v1").filter_map(|(_, hex)| from_hex(hex));
    let signed = [time.as_bytes(), b".", sent.body];
    let mut any = false;
    for signature in signatures.take(SIGNATURES_MAX) {
        any |= is_signed(key, &signed, &signature);
    }
    if !any {
        return Err(Unverified::Wrong(NAME));
    }
    in_time(at, now_s, tolerance)
}

fn standard(key: &[u8], sent: Sent<'_>, now_s: u64, tolerance: Duration) -> Result<String, Unverified> {
    const NAME: &str = "webhook-signature";
    let key = key.trim_ascii();
    let key = key.strip_prefix(STANDARD_KEY_PREFIX).unwrap_or(key);
    let key = STANDARD.decode(key).map_err(|_| Unverified::Key("it is not base64 after whsec_"))?;
    let key = zeroize::Zeroizing::new(key);
    let id = delivery(sent.headers, &WEBHOOK_ID, "webhook-id")?.ok_or(Unverified::Missing("webhook-id"))?;
    let time = single(sent.headers, &WEBHOOK_TIMESTAMP, "webhook-timestamp")?;
    let time = time.ok_or(Unverified::Missing("webhook-timestamp"))?;
    let at = seconds(time).ok_or(Unverified::Malformed("webhook-timestamp"))?;
    let given = single(sent.headers, &WEBHOOK_SIGNATURE, NAME)?.ok_or(Unverified::Missing(NAME))?;
    let signatures = given.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    let signed = [id.as_bytes(), b".", time.as_bytes(), b".", sent.body];
    let mut any = false;
    for signature in signatures.take(SIGNATURES_MAX) {
        any |= is_signed(&key, &signed, &signature);
    }
    if !any {
        return Err(Unverified::Wrong(NAME));
    }
    in_time(at, now_s, tolerance)?;
    Ok(id)
}

fn token(key: &[u8], sent: Sent<'_>) -> Result<Option<String>, Unverified> {
    const NAME: &str = "Authorization";
    let bearer = match single(sent.headers, &AUTHORIZATION, NAME)? {
        None => None,
        Some(given) => {
            let (scheme, token) = given.split_once(' ').ok_or(Unverified::Malformed(NAME))?;
            // Another scheme may be for the function.
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        }
    };
    let mut pairs = sent.query.split('&').filter_map(|pair| pair.split_once('='));
    let of_url = || pairs.find(|(name, _)| *name == "token").map(|(_, token)| token);
    let given = bearer.or_else(of_url).ok_or(Unverified::Missing("bearer token, nor a token in the URL"))?;
    // A secret that was written by an editor ends with a line.
    if !bool::from(given.as_bytes().ct_eq(key.trim_ascii())) {
        return Err(Unverified::Wrong("token"));
    }
    delivery(sent.headers, &WEBHOOK_ID, "webhook-id")
}

fn is_signed(key: &[u8], parts: &[&[u8]], signature: &[u8]) -> bool {
    // Any length of a key will do.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return false };
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(signature).is_ok()
}

fn in_time(at_s: u64, now_s: u64, tolerance: Duration) -> Result<(), Unverified> {
    match at_s.abs_diff(now_s) <= tolerance.as_secs() {
        true => Ok(()),
        false => Err(Unverified::Time(tolerance)),
    }
}

/// Seconds since 1970, as digits alone.
fn seconds(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

/// The one value of a field, as text.
fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    shown: &'static str,
) -> Result<Option<&'a str>, Unverified> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text.trim())),
        _ => Err(Unverified::Malformed(shown)),
    }
}

/// The sender's id of a delivery.
fn delivery(
    headers: &HeaderMap,
    name: &HeaderName,
    shown: &'static str,
) -> Result<Option<String>, Unverified> {
    match single(headers, name, shown)? {
        None => Ok(None),
        Some(id) if (1..=DELIVERY_LEN_MAX).contains(&id.len()) => Ok(Some(id.to_owned())),
        Some(_) => Err(Unverified::Malformed(shown)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TOLERANCE: Duration = Duration::from_secs(300);

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn check(
        scheme: WebhookScheme,
        key: &str,
        fields: &[(&'static str, &str)],
        body: &str,
        now_s: u64,
    ) -> Result<Option<String>, Unverified> {
        let headers = headers(fields);
        let sent = Sent { headers: &headers, query: "", body: body.as_bytes() };
        verify(scheme, key.as_bytes(), sent, now_s, TOLERANCE)
    }

    fn sign(key: &[u8], text: &str) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn github_signs_the_body() {
        // The example of GitHub's documentation.
        let key = "It's a Secret to Everybody";
        let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let github =
            |fields: &[(&'static str, &str)], body| check(WebhookScheme::Github, key, fields, body, 0);
        let signed = ("x-hub-signature-256", good);
        assert_eq!(github(&[signed], "Hello, World!"), Ok(None));
        let id = ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958");
        assert_eq!(github(&[signed, id], "Hello, World!"), Ok(Some(id.1.to_owned())));
        let upper = good.to_uppercase().replace("SHA256", "sha256");
        assert_eq!(github(&[("x-hub-signature-256", &upper)], "Hello, World!"), Ok(None));
        assert_eq!(github(&[signed], "Hello, World"), Err(Unverified::Wrong("X-Hub-Signature-256")));
        assert_eq!(github(&[], ""), Err(Unverified::Missing("X-Hub-Signature-256")));
        let malformed = Err(Unverified::Malformed("X-Hub-Signature-256"));
        for bad in ["", "sha256", "757107ea", "sha1=757107ea", "sha256=7", "sha256=zz"] {
            assert_eq!(github(&[("x-hub-signature-256", bad)], "Hello, World!"), malformed, "{bad}");
        }
        assert_eq!(github(&[signed, signed], "Hello, World!"), malformed, "twice");
        for cut in [0, 2, 62] {
            let wrong = github(&[("x-hub-signature-256", &good[..7 + cut])], "Hello, World!");
            assert_eq!(wrong, Err(Unverified::Wrong("X-Hub-Signature-256")), "the first {cut} digits");
        }
    }

    #[test]
    fn stripe_signs_time_and_body() {
        let (key, time, body) = ("whsec_test", 1_700_000_000_u64, "{\"id\": \"evt_1\"}");
        let good = hex(&sign(key.as_bytes(), &format!("{time}.{body}")));
        let stripe =
            |field: &str, now| check(WebhookScheme::Stripe, key, &[("stripe-signature", field)], body, now);
        let other = "00".repeat(32);
        for field in [
            format!("t={time},v1={good}"),
            format!("t={time},v1={other},v1={good},v0=6ff"),
            format!(" v1={good} , t={time} "),
        ] {
            assert_eq!(stripe(&field, time), Ok(None), "{field}");
            assert_eq!(stripe(&field, time + 300), Ok(None));
            assert_eq!(stripe(&field, time + 301), Err(Unverified::Time(TOLERANCE)));
            assert_eq!(stripe(&field, time - 301), Err(Unverified::Time(TOLERANCE)));
        }
        let wrong = Err(Unverified::Wrong("Stripe-Signature"));
        let malformed = Err(Unverified::Malformed("Stripe-Signature"));
        assert_eq!(stripe(&format!("t={},v1={good}", time + 1), time), wrong, "another time");
        assert_eq!(stripe(&format!("t={time},v0={good}"), time), wrong, "another scheme");
        assert_eq!(stripe(&format!("t={time}"), time), wrong);
        let many = format!("t={time}{},v1={good}", format!(",v1={other}").repeat(SIGNATURES_MAX));
        assert_eq!(stripe(&many, time), wrong, "no more than so many are looked at");
        for bad in
            [format!("v1={good}"), format!("t=+{time},v1={good}"), format!("t={time},t={time},v1={good}")]
        {
            assert_eq!(stripe(&bad, time), malformed, "{bad}");
        }
        assert_eq!(
            check(WebhookScheme::Stripe, key, &[], body, time),
            Err(Unverified::Missing("Stripe-Signature"))
        );
    }

    #[test]
    fn standard_webhooks_sign_id_time_and_body() {
        // The example of the Standard Webhooks specification's libraries.
        let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let (id, time, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, "{\"test\": 2432232314}");
        let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let time_text = time.to_string();
        let fields = |signature| {
            [("webhook-id", id), ("webhook-timestamp", time_text.as_str()), ("webhook-signature", signature)]
        };
        let standard = |key: &str, signature: &str, now| {
            let own = [
                ("webhook-id", id),
                ("webhook-timestamp", time_text.as_str()),
                ("webhook-signature", signature),
            ];
            check(WebhookScheme::Standard, key, &own, body, now)
        };
        let known = Ok(Some(id.to_owned()));
        assert_eq!(standard(key, good, time), known);
        assert_eq!(standard(&format!("{key}\n"), good, time), known, "a line's end is no part of the key");
        assert_eq!(standard(key, &format!("v1,AAAA v2,{} {good}", &good[3..]), time), known);
        assert_eq!(standard(&key[6..], good, time), known, "without the prefix");
        assert_eq!(standard(key, good, time + 301), Err(Unverified::Time(TOLERANCE)));
        let wrong = Err(Unverified::Wrong("webhook-signature"));
        for bad in ["", "v1,", "v1,!", &good[3..], &good.replace("v1", "v2")] {
            assert_eq!(standard(key, bad, time), wrong, "{bad}");
        }
        assert!(matches!(standard("whsec_?", good, time), Err(Unverified::Key(_))));
        for (index, name) in ["webhook-id", "webhook-timestamp", "webhook-signature"].into_iter().enumerate()
        {
            let mut some = fields(good).to_vec();
            some.remove(index);
            assert_eq!(
                check(WebhookScheme::Standard, key, &some, body, time),
                Err(Unverified::Missing(name))
            );
            let mut twice = fields(good).to_vec();
            twice.push(twice[index]);
            let found = check(WebhookScheme::Standard, key, &twice, body, time);
            assert_eq!(found, Err(Unverified::Malformed(name)));
        }
    }

    #[test]
    fn a_token_is_in_a_field_or_in_the_url() {
        let empty = HeaderMap::new();
        let token = |headers: &HeaderMap, query| {
            verify(WebhookScheme::Token, b"s3cret\n", Sent { headers, query, body: b"" }, 0, TOLERANCE)
        };
        let bearer = |value| headers(&[("authorization", value)]);
        assert_eq!(token(&bearer("Bearer s3cret"), ""), Ok(None));
        assert_eq!(token(&bearer("bearer  s3cret"), "token=other"), Ok(None));
        assert_eq!(token(&empty, "a=b&token=s3cret"), Ok(None));
        assert_eq!(token(&bearer("Basic abc"), "token=s3cret"), Ok(None));
        let with_id = headers(&[("authorization", "Bearer s3cret"), ("webhook-id", "1")]);
        assert_eq!(token(&with_id, ""), Ok(Some("1".to_owned())));
        for (value, query) in [("Bearer s3cre", ""), ("Bearer s3crets", ""), ("Basic x", "token=")] {
            assert_eq!(token(&bearer(value), query), Err(Unverified::Wrong("token")), "{value} {query}");
        }
        for bad in ["s3cret", "Bearer "] {
            assert!(matches!(token(&bearer(bad), ""), Err(Unverified::Malformed(_))), "{bad}");
        }
        assert!(matches!(token(&empty, "tokens=s3cret"), Err(Unverified::Missing(_))));
    }
}
