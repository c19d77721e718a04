//! Formats of single types.
//!
//! Owns those that the table of [`super`] cannot state field by field.

use core::net::{Ipv4Addr, Ipv6Addr};

use domain::utils::{base16, base64};

use super::{Data, expected, parse};

/// WKS: protocol and services (RFC 1035, section 3.4.2).
pub fn services(data: &mut Data<'_>) -> Result<(), String> {
    const PORTS: [(&str, u16); 14] = [
        ("echo", 7),
        ("discard", 9),
        ("daytime", 13),
        ("ftp-data", 20),
        ("ftp", 21),
        ("ssh", 22),
        ("telnet", 23),
        ("smtp", 25),
        ("time", 37),
        ("domain", 53),
        ("finger", 79),
        ("http", 80),
        ("pop3", 110),
        ("imap", 143),
    ];
    let word = data.next()?;
    let protocol = match word.text.to_ascii_lowercase().as_slice() {
        b"tcp" => Some(6),
        b"udp" => Some(17),
        number => parse::<u8>(number),
    };
    data.wire.push(protocol.ok_or_else(|| expected("a protocol", word))?);
    let mut bitmap = vec![0u8; 8192];
    while !data.words.is_empty() {
        let word = data.next()?;
        let port = PORTS.iter().find(|(name, _)| word.text.eq_ignore_ascii_case(name.as_bytes()));
        let port = port.map(|(_, port)| *port).or_else(|| parse::<u16>(word.text));
        let port = usize::from(port.ok_or_else(|| expected("a port", word))?);
        bitmap[port / 8] |= 0x80 >> (port % 8);
    }
    let len = bitmap.iter().rposition(|octet| *octet != 0).map_or(0, |at| at + 1);
    data.put(&bitmap[..len]);
    Ok(())
}

/// ATMA: `+` and digits, or an address in hexadecimal digits.
pub fn atm_address(data: &mut Data<'_>) -> Result<(), String> {
    if let [word] = data.words
        && let [b'+', digits @ ..] = word.text
    {
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(expected("a number", word));
        }
        data.words = &[];
        data.wire.push(1);
        data.put(digits);
        return Ok(());
    }
    data.wire.push(0);
    data.hex()
}

/// RFC 2874, section 3.1.
pub fn a6(data: &mut Data<'_>) -> Result<(), String> {
    let prefix = data.number::<u8>("a length up to 128")?;
    data.wire.push(prefix);
    if prefix < 128 {
        let address = data.number::<Ipv6Addr>("an IPv6 address")?.octets();
        let kept = usize::from(prefix / 8);
        let mut suffix = address[kept..].to_vec();
        suffix[0] &= 0xff >> (prefix % 8);
        data.put(suffix);
    }
    match prefix {
        0 => Ok(()),
        1..=128 => data.name(),
        _ => Err("a prefix of more than 128 bits".to_owned()),
    }
}

/// RFC 3123, section 5.
pub fn prefixes(data: &mut Data<'_>) -> Result<(), String> {
    while !data.words.is_empty() {
        let word = data.next()?;
        let item = prefix(word.text).ok_or_else(|| expected("a prefix, as 1:192.0.2.0/24", word))?;
        data.put(item);
    }
    Ok(())
}

fn prefix(text: &[u8]) -> Option<Vec<u8>> {
    let text = core::str::from_utf8(text).ok()?;
    let (negated, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
    let (family, text) = text.split_once(':')?;
    let (address, bits) = text.split_once('/')?;
    let (family, bits): (u16, u8) = (family.parse().ok()?, bits.parse().ok()?);
    let (octets, max) = match family {
        1 => (address.parse::<Ipv4Addr>().ok()?.octets().to_vec(), 32),
        2 => (address.parse::<Ipv6Addr>().ok()?.octets().to_vec(), 128),
        _ => return None,
    };
    // Zeros at the end are left out (section 4).
    let len = octets.iter().rposition(|octet| *octet != 0).map_or(0, |at| at + 1);
    let mut item = family.to_be_bytes().to_vec();
    item.extend([bits, u8::from(negated) << 7 | len as u8]);
    item.extend(&octets[..len]);
    (bits <= max).then_some(item)
}

/// HIP (RFC 8005, section 6).
pub fn host_identity(data: &mut Data<'_>) -> Result<(), String> {
    let algorithm = data.number::<u8>("an algorithm")?;
    let [tag, key] = [data.next()?, data.next()?];
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    let hit: Vec<u8> = base16::decode(&text(tag.text)).map_err(|_| expected("hexadecimal digits", tag))?;
    let public: Vec<u8> = base64::decode(&text(key.text)).map_err(|_| expected("base64", key))?;
    let hit_len = u8::try_from(hit.len()).map_err(|_| expected("up to 255 octets", tag))?;
    let key_len = u16::try_from(public.len()).map_err(|_| expected("up to 65535 octets", key))?;
    data.wire.extend([hit_len, algorithm]);
    data.put(key_len.to_be_bytes());
    data.put(hit);
    data.put(public);
    while !data.words.is_empty() {
        data.name()?;
    }
    Ok(())
}

/// AMTRELAY (RFC 8777, section 4).
pub fn relay(data: &mut Data<'_>) -> Result<(), String> {
    let precedence = data.number::<u8>("a precedence")?;
    let discovery = data.number::<u8>("0 or 1")?;
    let kind = data.number::<u8>("a kind of relay")?;
    if discovery > 1 {
        return Err("the second number is 0 or 1".to_owned());
    }
    data.wire.extend([precedence, discovery << 7 | kind]);
    match kind {
        0 => match data.next()? {
            word if word.text == b"." => Ok(()),
            word => Err(expected("a dot, for no relay", word)),
        },
        1 => data.number::<Ipv4Addr>("an IPv4 address").map(|address| data.put(address.octets())),
        2 => data.number::<Ipv6Addr>("an IPv6 address").map(|address| data.put(address.octets())),
        3 => data.name(),
        _ => Err(format!("{kind} is no kind of relay: use 0 to 3")),
    }
}

/// LOC (RFC 1876, section 3).
pub fn location(data: &mut Data<'_>) -> Result<(), String> {
    let latitude = angle(data, b'N', b'S', 90)?;
    let longitude = angle(data, b'E', b'W', 180)?;
    // In cm; the altitude is above a base 100 km below.
    let altitude = metres(data)?.ok_or("the data end before the altitude")? + 10_000_000;
    let altitude = u32::try_from(altitude).map_err(|_| "the altitude is out of range".to_owned())?;
    let mut sizes = [100, 1_000_000, 1_000];
    for size in &mut sizes {
        *size = metres(data)?.unwrap_or(*size);
    }
    data.wire.push(0);
    for size in sizes {
        data.wire.push(precision(size).ok_or("a size is out of range")?);
    }
    for number in [latitude, longitude, altitude] {
        data.put(number.to_be_bytes());
    }
    Ok(())
}

/// Reads degrees, minutes and seconds up to the letter; in thousandths of a second from 2^31.
fn angle(data: &mut Data<'_>, positive: u8, negative: u8, max: i64) -> Result<u32, String> {
    let mut total = 0;
    for unit in [3_600_000, 60_000, 1000] {
        let word = data.next()?;
        let limit = if unit == 3_600_000 { max } else { 59 } * 1000 + 999;
        let value = thousandths(word.text, 3).filter(|value| (0..=limit).contains(value));
        total += value.ok_or_else(|| expected("degrees, minutes or seconds", word))? * unit / 1000;
        if let [next, ..] = data.words
            && let [letter] = next.text
            && (letter.eq_ignore_ascii_case(&positive) || letter.eq_ignore_ascii_case(&negative))
        {
            data.words = &data.words[1..];
            let signed = if letter.eq_ignore_ascii_case(&negative) { -total } else { total };
            let fits = total <= max * 3_600_000;
            return u32::try_from((1 << 31) + signed).ok().filter(|_| fits).ok_or("out of range".into());
        }
    }
    Err(format!("no {} or {} after the degrees", char::from(positive), char::from(negative)))
}

/// Reads metres, with or without `m`; in cm.
fn metres(data: &mut Data<'_>) -> Result<Option<i64>, String> {
    if data.words.is_empty() {
        return Ok(None);
    }
    let word = data.next()?;
    let text = word.text.strip_suffix(b"m").unwrap_or(word.text);
    thousandths(text, 2).map(Some).ok_or_else(|| expected("metres", word))
}

/// Reads a decimal number with up to `places` digits behind its point, times 10^`places`.
fn thousandths(text: &[u8], places: usize) -> Option<i64> {
    let text = core::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|octet| octet.is_ascii_digit());
    if whole.is_empty() || whole.len() > 10 || fraction.len() > places || !digits(whole) || !digits(fraction)
    {
        return None;
    }
    let number: i64 = format!("{whole}{fraction:0<places$}").parse().ok()?;
    Some(if negative { -number } else { number })
}

/// Returns a size in cm as a digit and a power of ten.
fn precision(size: i64) -> Option<u8> {
    let mut rest = u64::try_from(size).ok()?;
    let mut power = 0;
    while rest > 9 {
        rest /= 10;
        power += 1;
    }
    (power <= 9).then_some((rest as u8) << 4 | power)
}
