//! HTTP/1.1: GET with keep-alive (RFC 9112).
//!
//! The status must be 200 and the body must be the expected one, by length and hash: the first that
//! this run received for the path, unless a body was set beforehand. Bodies are delimited by
//! `Content-Length`, by chunks, or by the end of the connection. Trailers are ignored, folded
//! fields are unfolded, and reason phrases may have any octets (sections 4, 5.2 and 7.1.2). Interim
//! answers (1xx) belong to the answer that follows them; 101 is malformed, since no other protocol
//! was requested (RFC 9110 sections 15.2 and 15.2.2).
//!
//! A ticket is the index of the path in the list.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;

use tailwater_workload::Prng;
use tailwater_workload::random::unit_open_closed;

use super::{Ids, MAX_ANSWER, Malformed, Medium, Protocol, Request, Ticket, Verdict};

/// The beginning of every answer.
const VERSION: &[u8] = b"HTTP/1.";
/// Longest head of an answer.
const MAX_HEAD: usize = 16 << 10;
/// Maximum number of chunks of one body.
const MAX_CHUNKS: usize = 1 << 16;

/// Why paths were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// Not a path.
    #[error("`{path}` is not a path: it begins with a slash and has printable characters without blanks")]
    Path {
        /// What was given.
        path: String,
    },
    /// Not a name of a host.
    #[error("`{host}` is not a host")]
    Host {
        /// What was given.
        host: String,
    },
    /// No paths.
    #[error("there is no path to get")]
    Empty,
}

#[derive(Debug, Clone)]
struct Page {
    request: Vec<u8>,
    /// Hash of the body that is expected.
    body: OnceLock<u64>,
}

/// Gets pages, each equally often.
#[derive(Debug, Clone)]
pub struct Http {
    pages: Vec<Page>,
}

impl Http {
    /// Creates a client that gets `paths` with `host` as the host name.
    ///
    /// # Errors
    /// [`HttpError`].
    pub fn new(host: &str, paths: &[impl AsRef<str>]) -> Result<Self, HttpError> {
        let graphic = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !graphic(host) {
            return Err(HttpError::Host { host: host.to_owned() });
        }
        let pages = paths.iter().map(|path| {
            let path = path.as_ref();
            if !graphic(path) || !path.starts_with('/') {
                return Err(HttpError::Path { path: path.to_owned() });
            }
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
            Ok(Page { request, body: OnceLock::new() })
        });
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        if pages.is_empty() { Err(HttpError::Empty) } else { Ok(Self { pages }) }
    }

    /// Sets the expected body of the path at `index`, instead of the first one received.
    pub fn expect_body(&self, index: usize, body: &[u8]) {
        if let Some(page) = self.pages.get(index) {
            // The first expectation stays.
            let _ = page.body.set(hash(body));
        }
    }
}

fn hash(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

/// The delimitation of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    /// The end of the connection (RFC 9112 section 6.3, rule 8).
    UntilEnd,
}

struct Head {
    /// With the empty line after it.
    len: usize,
    status: u16,
    framing: Framing,
}

/// Reads the head of an answer and of all interim answers before it; `None` while it is incomplete.
fn read_head(stream: &[u8]) -> Result<Option<Head>, Malformed> {
    // A stranger's greeting is no beginning of a head, however long it is waited for.
    if !stream.iter().zip(VERSION).all(|(got, wanted)| got == wanted) {
        return Err(Malformed);
    }
    let searched = &stream[..stream.len().min(MAX_HEAD)];
    let mut begin = 0;
    // Each turn advances, within the longest head.
    loop {
        let Some(end) = searched[begin..].windows(4).position(|window| window == b"\r\n\r\n") else {
            return if stream.len() >= MAX_HEAD { Err(Malformed) } else { Ok(None) };
        };
        let text = unfolded(&searched[begin..begin + end]);
        let (first, fields) = text.split_once("\r\n").unwrap_or((&*text, ""));
        let rest = first.strip_prefix("HTTP/1.").ok_or(Malformed)?;
        let status: u16 = rest.get(2..5).and_then(|code| code.parse().ok()).ok_or(Malformed)?;
        begin += end + 4;
        match status {
            101 => return Err(Malformed),
            100..=199 => {}
            _ => return Ok(Some(Head { len: begin, status, framing: read_framing(status, fields)? })),
        }
    }
}

/// Returns a head as text, with a space for each fold of a field (RFC 9112 section 5.2). Only names
/// and values of ASCII matter, so other octets need no meaning.
fn unfolded(head: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(head);
    match ["\r\n ", "\r\n\t"].iter().any(|fold| text.contains(fold)) {
        true => text.replace("\r\n ", " ").replace("\r\n\t", " ").into(),
        false => text,
    }
}

/// Returns the delimitation of the body after a head of this status and these fields (RFC 9112
/// section 6.3).
fn read_framing(status: u16, fields: &str) -> Result<Framing, Malformed> {
    if matches!(status, 204 | 304) {
        // There is no body, whatever the fields say: a 304 may state the length of the omitted one.
        return Ok(Framing::Length(0));
    }
    let (mut length, mut chunked) = (None, false);
    for line in fields.split("\r\n").filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(Malformed)?;
        if name.eq_ignore_ascii_case("content-length") {
            let value: usize = value.trim().parse().map_err(|_| Malformed)?;
            // Two that differ are an attack or a mistake (RFC 9112 section 6.3).
            if length.is_some_and(|length| length != value) || value > MAX_ANSWER - MAX_HEAD {
                return Err(Malformed);
            }
            length = Some(value);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.trim().eq_ignore_ascii_case("chunked");
            if !chunked {
                return Err(Malformed);
            }
        }
    }
    Ok(match (chunked, length) {
        (true, _) => Framing::Chunked,
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::UntilEnd,
    })
}

/// Walks the chunks at the beginning of `bytes` (RFC 9112 section 7.1) and passes each to `take`;
/// returns where they end, behind the trailers, `None` while the end has not arrived.
fn read_chunks(bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<Option<usize>, Malformed> {
    let mut at = 0;
    for _ in 0..MAX_CHUNKS {
        let rest = &bytes[at..];
        let Some(end) = rest.iter().take(64).position(|byte| *byte == b'\n') else {
            return if rest.len() >= 64 { Err(Malformed) } else { Ok(None) };
        };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| Malformed)?;
        let line = line.strip_suffix('\r').ok_or(Malformed)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let len = usize::from_str_radix(digits, 16).map_err(|_| Malformed)?;
        if len > MAX_ANSWER || at > MAX_ANSWER {
            return Err(Malformed);
        }
        let begin = end + 1;
        if len == 0 {
            return Ok(read_trailers(&rest[begin..])?.map(|len| at + begin + len));
        }
        let Some(chunk) = rest.get(begin..begin + len + 2) else { return Ok(None) };
        let data = chunk.strip_suffix(b"\r\n").ok_or(Malformed)?;
        at += begin + len + 2;
        take(data);
    }
    Err(Malformed)
}

/// Returns the length of the trailers at the beginning of `bytes`, with the empty line behind them
/// (RFC 9112 section 7.1.2); `None` while it has not arrived.
fn read_trailers(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    if bytes.starts_with(b"\r\n") {
        return Ok(Some(2));
    }
    let searched = &bytes[..bytes.len().min(MAX_HEAD)];
    match searched.windows(4).position(|window| window == b"\r\n\r\n") {
        Some(end) => Ok(Some(end + 4)),
        None if bytes.len() >= MAX_HEAD => Err(Malformed),
        None => Ok(None),
    }
}

impl Protocol for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn ids(&self, _medium: Medium) -> Ids {
        Ids::Order
    }

    fn draw(&self, prng: &mut Prng) -> Ticket {
        let count = self.pages.len() as u64;
        // The draw can be 1.
        ((unit_open_closed(prng) * count as f64) as u64).min(count - 1)
    }

    fn encode(&self, request: &Request, _medium: Medium, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pages[request.ticket as usize % self.pages.len()].request);
    }

    fn split(&self, stream: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(head) = read_head(stream)? else { return Ok(None) };
        match head.framing {
            Framing::Length(length) => {
                let len = head.len + length;
                Ok((stream.len() >= len).then_some(len))
            }
            Framing::Chunked => Ok(read_chunks(&stream[head.len..], |_| {})?.map(|len| head.len + len)),
            Framing::UntilEnd => Ok(None),
        }
    }

    fn split_at_end(&self, stream: &[u8]) -> Option<usize> {
        let head = read_head(stream).ok()??;
        (head.framing == Framing::UntilEnd).then_some(stream.len())
    }

    fn id(&self, _answer: &[u8], _medium: Medium) -> Option<u64> {
        None
    }

    fn check(&self, request: &Request, answer: &[u8], _medium: Medium) -> Verdict {
        let Ok(Some(head)) = read_head(answer) else { return Verdict::Wrong };
        let Some(page) = self.pages.get(request.ticket as usize) else { return Verdict::Wrong };
        match head.status {
            200 => {}
            429 | 500..=599 => return Verdict::Refused,
            404 | 410 => return Verdict::Miss,
            _ => return Verdict::Wrong,
        }
        let body = &answer[head.len..];
        let got = match head.framing {
            Framing::Length(length) if length == body.len() => hash(body),
            Framing::UntilEnd => hash(body),
            Framing::Length(_) => return Verdict::Wrong,
            Framing::Chunked => {
                let mut hasher = DefaultHasher::new();
                if !matches!(read_chunks(body, |chunk| hasher.write(chunk)), Ok(Some(_))) {
                    return Verdict::Wrong;
                }
                hasher.finish()
            }
        };
        if *page.body.get_or_init(|| got) == got { Verdict::Right } else { Verdict::Wrong }
    }

    fn contact(&self) -> Ticket {
        0
    }
}
