//! Ports from words: `eth1,gateway=10.77.0.1,mode=native`, as on the command line and in the configuration file.
//!
//! Owns the grammar that all ports' options share (words separated by commas, each `key` or `key=value`), quantities with
//! units, and [`PortOptions`], the `[ports]` table of the configuration. An unknown word is refused with the words there
//! are.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

use super::fault::{FaultPort, FaultSpec};
use super::pcap::{PcapPort, PcapSpec};
use super::tap::{TapPort, TapSpec};
use super::xdp::{XdpPort, XdpSpec};
use super::{Port, PortError};

/// A word that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}`: {expected}")]
pub struct OptionError {
    /// As it was written.
    pub word: String,
    /// What is possible.
    pub expected: String,
}

impl OptionError {
    pub(super) fn new(word: &str, expected: impl Into<String>) -> Self {
        Self { word: word.to_owned(), expected: expected.into() }
    }
}

/// The words of `text`, each with what follows its `=`. Empty words are skipped.
pub(super) fn words(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(|word| match word.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (word, None),
    })
}

/// The value of `key`, read by `read`.
pub(super) fn value<T>(
    key: &str,
    value: Option<&str>,
    expected: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, OptionError> {
    let word = || format!("{key}{}{}", if value.is_some() { "=" } else { "" }, value.unwrap_or_default());
    value.and_then(read).ok_or_else(|| OptionError::new(&word(), expected))
}

/// A number and its unit, the first of `units` whose name ends `text`.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// `5ms`, `250us`, `80ns`, `1.5s`: nanoseconds, at most an hour.
pub(super) fn duration_ns(text: &str) -> Option<u64> {
    let ns = quantity(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)])?;
    (ns <= 3.6e12).then_some(ns.round() as u64)
}

/// `1%`, `0.5%`: parts in a thousand million.
pub(super) fn share_ppb(text: &str) -> Option<u32> {
    let ppb = quantity(text, &[("%", 1e7)])?;
    (ppb <= 1e9).then_some(ppb.round() as u32)
}

/// `100mbit`, `2gbit`, `64kbit`: bits per second, 1000 to 10^12.
pub(super) fn rate_bps(text: &str) -> Option<u64> {
    let bps = quantity(text, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)])?;
    (1e3..=1e12).contains(&bps).then_some(bps.round() as u64)
}

/// The `[ports]` table: which ports the IOKernel has. At most one of `tap`, `xdp` and `pcap`, because each is the way to
/// the rest of the world.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortOptions {
    /// A TAP device; see [`TapSpec`] for the words.
    pub tap: Option<String>,
    /// Linux's own address on the TAP device.
    pub host_ip: Option<Ipv4Addr>,
    /// An interface through AF_XDP; see [`XdpSpec`] for the words.
    pub xdp: Option<String>,
    /// A capture file; see [`PcapSpec`] for the words.
    pub pcap: Option<String>,
    /// A bad network around the port; see [`FaultSpec`] for the words.
    pub fault: Option<String>,
}

impl PortOptions {
    /// The ports, not yet started.
    ///
    /// # Errors
    /// [`PortError`] names the port and the word that is wrong, or the ports that exclude each other.
    pub fn build(&self) -> Result<Vec<Box<dyn Port>>, PortError> {
        let fail = |port: &str, why: String| PortError { port: port.to_owned(), why };
        let wrong = |port: &'static str| move |error: OptionError| fail(port, error.to_string());
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        if let Some(text) = &self.tap {
            let spec: TapSpec = text.parse().map_err(wrong("tap"))?;
            let host = self.host_ip.ok_or_else(|| {
                fail("tap", "Linux's address on the device is missing; say host-ip".to_owned())
            })?;
            ports.push(Box::new(TapPort::with_spec(spec, host)));
        }
        if let Some(text) = &self.xdp {
            ports.push(Box::new(XdpPort::new(text.parse::<XdpSpec>().map_err(wrong("xdp"))?)));
        }
        if let Some(text) = &self.pcap {
            ports.push(Box::new(PcapPort::new(text.parse::<PcapSpec>().map_err(wrong("pcap"))?)));
        }
        if ports.len() > 1 {
            let why = "an IOKernel has one uplink: choose one of tap, xdp and pcap".to_owned();
            return Err(fail(ports[1].name(), why));
        }
        let Some(text) = &self.fault else { return Ok(ports) };
        let spec: FaultSpec = text.parse().map_err(wrong("fault"))?;
        let Some(inner) = ports.pop() else {
            return Err(fail("fault", "there is no port to make worse: say tap, xdp or pcap".to_owned()));
        };
        Ok(vec![Box::new(FaultPort::new(inner, spec))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_need_a_unit_and_a_possible_number() {
        assert_eq!(duration_ns("5ms"), Some(5_000_000));
        assert_eq!(duration_ns("1.5us"), Some(1_500));
        assert_eq!(duration_ns("2s"), Some(2_000_000_000));
        assert_eq!(share_ppb("0.1%"), Some(1_000_000));
        assert_eq!(share_ppb("100%"), Some(1_000_000_000));
        assert_eq!(rate_bps("100mbit"), Some(100_000_000));
        for bad in ["5", "ms", "-1ms", "2h", "inf%", "nan%", "101%", "5000s"] {
            assert!(duration_ns(bad).is_none() && share_ppb(bad).is_none(), "{bad}");
        }
        assert!(rate_bps("0kbit").is_none() && rate_bps("10").is_none());
    }

    #[test]
    fn impossible_combinations_say_what_to_choose() {
        let some = |text: &str| Some(text.to_owned());
        let both = PortOptions { xdp: some("eth1"), pcap: some("replay=x"), ..PortOptions::default() };
        assert!(both.build().err().unwrap().to_string().contains("choose one"));
        let alone = PortOptions { fault: some("loss=1%"), ..PortOptions::default() };
        assert!(alone.build().err().unwrap().to_string().contains("no port"));
        let no_host = PortOptions { tap: some("tw0"), ..PortOptions::default() };
        assert!(no_host.build().err().unwrap().to_string().contains("host-ip"));
        let typo = PortOptions { xdp: some("eth1,mood=skb"), ..PortOptions::default() };
        let error = typo.build().err().unwrap().to_string();
        assert!(error.contains("mood") && error.contains("mode="), "{error}");
        let good =
            PortOptions { xdp: some("eth1,mode=skb"), fault: some("loss=1%"), ..PortOptions::default() };
        assert_eq!(good.build().unwrap()[0].name(), "eth1");
        assert!(PortOptions::default().build().unwrap().is_empty());
    }
}
