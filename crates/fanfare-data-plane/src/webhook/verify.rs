//! Whether a sender knows the secret.
//!
//! Everything that depends on the secret is compared in constant time, and a refusal says what is missing or malformed,
//! never how much of a signature was right.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fanfare_types::WebhookScheme;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;
use subtle::ConstantTimeEq;

const GITHUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
const GITHUB_DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");
/// Bytes of a token that are in no field by chance.
const TOKEN_BYTES_UNLIKELY: usize = 8;
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
    #[error("the token is not right: the sender has another secret")]
    WrongToken,
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

/// Checks what can be checked before the body is there, so that nobody has it kept who could not be believed: a token,
/// or that there is a signature, with a time that is near. `now_s` as below.
pub(crate) fn may_be_known(
    scheme: WebhookScheme,
    key: &[u8],
    headers: &HeaderMap,
    query: &str,
    now_s: u64,
    tolerance: Duration,
) -> Result<(), Unverified> {
    match scheme {
        WebhookScheme::Github => github_signature(headers).map(drop),
        WebhookScheme::Stripe => in_time(stripe_signatures(headers)?.at_s, now_s, tolerance),
        WebhookScheme::Standard => in_time(standard_signatures(headers)?.at_s, now_s, tolerance),
        WebhookScheme::Token => {
            let sent = Sent { headers, query, body: &[] };
            verify(scheme, key, sent, now_s, tolerance).map(drop)
        }
    }
}

/// Checks that the sender knows `key`; returns its own id of the delivery, if it gives one: of Stripe, which gives none,
/// the signature, which each new attempt has another of. `now_s` is the wall clock, in seconds since 1970.
pub(crate) fn verify(
    scheme: WebhookScheme,
    key: &[u8],
    sent: Sent<'_>,
    now_s: u64,
    tolerance: Duration,
) -> Result<Option<String>, Unverified> {
    let key = effective(key)?;
    match scheme {
        WebhookScheme::Github => github(key, sent),
        WebhookScheme::Stripe => stripe(key, sent, now_s, tolerance).map(Some),
        WebhookScheme::Standard => standard(key, sent, now_s, tolerance).map(Some),
        WebhookScheme::Token => token(key, sent),
    }
}

/// The path and query `target` without the secret, which `headers` lose as well: the function has no need of it, and
/// what is kept of a call is no place for it. For [`WebhookScheme::Token`].
pub(crate) fn without_token(key: &[u8], headers: &mut HeaderMap, target: &str) -> String {
    let Ok(key) = effective(key) else { return target.to_owned() };
    let is_key = |value: &HeaderValue| {
        let token = value.to_str().ok().and_then(|given| bearer(given.trim()));
        token.is_some_and(|token| is_same(token, key))
    };
    if headers.get_all(AUTHORIZATION).iter().any(is_key) {
        headers.remove(AUTHORIZATION);
    }
    // Proxies and browsers repeat the URL in fields of their own.
    let repeats = |name: &&HeaderName| headers.get_all(*name).iter().any(|value| repeats(value, key));
    let repeating: Vec<HeaderName> = headers.keys().filter(repeats).cloned().collect();
    for name in repeating {
        headers.remove(name);
    }
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let is_other = |pair: &&str| !token_of(pair).is_some_and(|token| token.is(key));
    let rest: Vec<_> = query.split('&').filter(is_other).collect();
    match rest.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", rest.join("&")),
    }
}

/// Whether a field's value is the token, or has it: within a URL, or anywhere where it is too long to be there by chance.
fn repeats(value: &HeaderValue, key: &[u8]) -> bool {
    let bytes = value.as_bytes();
    let has =
        |bytes: &[u8]| key.len() >= TOKEN_BYTES_UNLIKELY && bytes.windows(key.len()).any(|part| part == key);
    let is_token = |pair: &str| token_of(pair).is_some_and(|token| token.is(key));
    let text = value.to_str().unwrap_or_default();
    bytes.trim_ascii() == key || has(bytes) || text.split(['?', '&', '#', ';', ' ']).any(is_token)
}

/// The key as it is used: a secret that was written by an editor ends with a line.
fn effective(key: &[u8]) -> Result<&[u8], Unverified> {
    let key = key.trim_ascii();
    if key.is_empty() { Err(Unverified::Key("it is blank")) } else { Ok(key) }
}

fn github_signature(headers: &HeaderMap) -> Result<Vec<u8>, Unverified> {
    const NAME: &str = "X-Hub-Signature-256";
    let given = single(headers, &GITHUB_SIGNATURE, NAME)?.ok_or(Unverified::Missing(NAME))?;
    given.strip_prefix("sha256=").and_then(from_hex).ok_or(Unverified::Malformed(NAME))
}

fn github(key: &[u8], sent: Sent<'_>) -> Result<Option<String>, Unverified> {
    let signature = github_signature(sent.headers)?;
    if !is_signed(key, &[sent.body], &signature) {
        return Err(Unverified::Wrong("X-Hub-Signature-256"));
    }
    delivery(sent.headers, &GITHUB_DELIVERY, "X-GitHub-Delivery")
}

/// Signatures with the time that they sign.
struct Timed<'a> {
    time: &'a str,
    at_s: u64,
    signatures: Vec<Vec<u8>>,
}

fn stripe_signatures(headers: &HeaderMap) -> Result<Timed<'_>, Unverified> {
    const NAME: &str = "Stripe-Signature";
    let given = single(headers, &STRIPE_SIGNATURE, NAME)?.ok_or(Unverified::Missing(NAME))?;
    let parts = || given.split(',').filter_map(|part| part.trim().split_once('='));
    let mut times = parts().filter(|(name, _)| *name == "t").map(|(_, time)| time);
    let (Some(time), None) = (times.next(), times.next()) else { return Err(Unverified::Malformed(NAME)) };
    let at_s = seconds(time).ok_or(Unverified::Malformed(NAME))?;
    let signatures = parts().filter(|(name, _)| *name == "v1").filter_map(|(_, hex)| from_hex(hex));
    Ok(Timed { time, at_s, signatures: signatures.take(SIGNATURES_MAX).collect() })
}

fn stripe(key: &[u8], sent: Sent<'_>, now_s: u64, tolerance: Duration) -> Result<String, Unverified> {
    let Timed { time, at_s, signatures } = stripe_signatures(sent.headers)?;
    let signed = [time.as_bytes(), b".", sent.body];
    let mut right = None;
    for signature in &signatures {
        if is_signed(key, &signed, signature) {
            right = Some(signature);
        }
    }
    let signature = right.ok_or(Unverified::Wrong("Stripe-Signature"))?;
    in_time(at_s, now_s, tolerance)?;
    Ok(signature.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn standard_signatures(headers: &HeaderMap) -> Result<Timed<'_>, Unverified> {
    const NAME: &str = "webhook-signature";
    let time = single(headers, &WEBHOOK_TIMESTAMP, "webhook-timestamp")?;
    let time = time.ok_or(Unverified::Missing("webhook-timestamp"))?;
    let at_s = seconds(time).ok_or(Unverified::Malformed("webhook-timestamp"))?;
    let given = single(headers, &WEBHOOK_SIGNATURE, NAME)?.ok_or(Unverified::Missing(NAME))?;
    let signatures = given.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    Ok(Timed { time, at_s, signatures: signatures.take(SIGNATURES_MAX).collect() })
}

fn standard(key: &[u8], sent: Sent<'_>, now_s: u64, tolerance: Duration) -> Result<String, Unverified> {
    let key = key.strip_prefix(STANDARD_KEY_PREFIX).unwrap_or(key);
    let key = STANDARD.decode(key).map_err(|_| Unverified::Key("it is not base64 after whsec_"))?;
    let key = zeroize::Zeroizing::new(key);
    if key.is_empty() {
        return Err(Unverified::Key("there is nothing after whsec_"));
    }
    let id = delivery(sent.headers, &WEBHOOK_ID, "webhook-id")?.ok_or(Unverified::Missing("webhook-id"))?;
    let Timed { time, at_s, signatures } = standard_signatures(sent.headers)?;
    let signed = [id.as_bytes(), b".", time.as_bytes(), b".", sent.body];
    let mut any = false;
    for signature in &signatures {
        any |= is_signed(&key, &signed, signature);
    }
    if !any {
        return Err(Unverified::Wrong("webhook-signature"));
    }
    in_time(at_s, now_s, tolerance)?;
    Ok(id)
}

fn token(key: &[u8], sent: Sent<'_>) -> Result<Option<String>, Unverified> {
    const NAME: &str = "Authorization";
    let given = single(sent.headers, &AUTHORIZATION, NAME)?;
    if given.is_some_and(|given| !given.contains(' ')) {
        return Err(Unverified::Malformed(NAME));
    }
    let is_right = match given.and_then(bearer) {
        Some(token) => is_same(token, key),
        None => {
            let token = sent.query.split('&').find_map(token_of);
            token.ok_or(Unverified::Missing("bearer token, nor a token in the URL"))?.is(key)
        }
    };
    if !is_right {
        return Err(Unverified::WrongToken);
    }
    delivery(sent.headers, &WEBHOOK_ID, "webhook-id")
}

/// The token in a value of `Authorization`. Another scheme may be for the function.
fn bearer(given: &str) -> Option<&str> {
    let (scheme, token) = given.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A token in a URL.
struct UrlToken<'a> {
    /// As it came: not every sender encodes a `+`.
    raw: &'a str,
    decoded: Cow<'a, str>,
}

impl UrlToken<'_> {
    fn is(&self, key: &[u8]) -> bool {
        is_same(self.raw, key) | is_same(&self.decoded, key)
    }
}

/// The token, if this pair of a query is it.
fn token_of(pair: &str) -> Option<UrlToken<'_>> {
    let (_, raw) = pair.split_once('=')?;
    let (name, decoded) = form_urlencoded::parse(pair.as_bytes()).next()?;
    (name == "token").then_some(UrlToken { raw, decoded })
}

fn is_same(given: &str, key: &[u8]) -> bool {
    given.as_bytes().ct_eq(key).into()
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
mod tests;
