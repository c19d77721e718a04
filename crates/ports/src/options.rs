//! Ports built from words: `eth1,gateway=10.77.0.1,mode=native`, as on the command line and in the
//! configuration file.
//!
//! Owns [`PortOptions`], the `[ports]` table of the configuration; each port parses its own words,
//! in one common grammar.

use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::fault::{FaultPort, FaultSpec};
use super::grammar::OptionError;
use super::pcap::{PcapPort, PcapSpec};
use super::publish::{self, Published};
use super::tap::{TapPort, TapSpec};
use super::xdp::{XdpPort, XdpSpec};
use super::{Port, PortError};
use crate::sys::interface::Interface;

/// The `[ports]` table: which ports the IOKernel has. At most one of `tap`, `xdp` and `pcap`,
/// because each is the uplink.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortOptions {
    /// A TAP device; see [`TapSpec`] for the words.
    pub tap: Option<String>,
    /// Linux's address on the TAP device.
    pub host_ip: Option<Ipv4Addr>,
    /// Ports of this machine that Linux passes to programs behind the TAP device; see
    /// [`Published`] for the words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<String>,
    /// An interface through AF_XDP; see [`XdpSpec`] for the words.
    pub xdp: Option<String>,
    /// A capture file; see [`PcapSpec`] for the words.
    pub pcap: Option<String>,
    /// A bad network around the port; see [`FaultSpec`] for the words.
    pub fault: Option<String>,
}

impl PortOptions {
    /// Returns whether a port's peers are programs of this machine: behind a TAP device, and at the
    /// other end of a veth pair. False for an interface that is not there.
    pub fn has_local_peer(&self) -> bool {
        let is_veth = || {
            let spec: XdpSpec = self.xdp.as_ref()?.parse().ok()?;
            Some(Interface::new(&spec.interface).ok()?.is_veth())
        };
        self.tap.is_some() || is_veth() == Some(true)
    }

    /// Returns what is published.
    ///
    /// # Errors
    /// [`PortError`] names the wrong word.
    pub fn published(&self) -> Result<Vec<Published>, PortError> {
        let fail = |why: String| PortError { port: "publish".to_owned(), why };
        let published = publish::parse_all(&self.publish).map_err(|error| fail(error.to_string()))?;
        if !published.is_empty() && self.tap.is_none() {
            return Err(fail(
                "only what is behind a TAP device can be published: give --tap, too".to_owned(),
            ));
        }
        Ok(published)
    }

    /// Returns in words what the port would use of this machine, after it was opened and closed
    /// again; with `inherits`, a device that another program uses is left to a takeover.
    ///
    /// # Errors
    /// As [`build`](Self::build), and what the port lacks on this machine.
    pub fn examine(
        &self,
        mtu: u16,
        (prefix_len, network6): (u8, Ipv6Addr),
        inherits: bool,
    ) -> Result<String, PortError> {
        self.build()?;
        // The words are those of a port.
        let found = if let Some((text, host)) = self.tap.as_ref().zip(self.host_ip) {
            text.parse().ok().map(|spec| TapPort::with_spec(spec, host).examine(prefix_len, inherits))
        } else if let Some(text) = &self.xdp {
            text.parse().ok().map(|spec| XdpPort::new(spec).look(mtu, (prefix_len, network6), inherits))
        } else if let Some(text) = &self.pcap {
            text.parse().ok().map(|spec| PcapPort::new(spec).examine())
        } else {
            None
        };
        found.unwrap_or_else(|| Ok("none: only programs on this machine reach each other".to_owned()))
    }

    /// Returns the ports, not yet started.
    ///
    /// # Errors
    /// [`PortError`] names the port and the wrong word, or the ports that exclude each other.
    pub fn build(&self) -> Result<Vec<Box<dyn Port>>, PortError> {
        let fail = |port: &str, why: String| PortError { port: port.to_owned(), why };
        let wrong = |port: &'static str| move |error: OptionError| fail(port, error.to_string());
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        self.published()?;
        if let Some(text) = &self.tap {
            let spec: TapSpec = text.parse().map_err(wrong("tap"))?;
            let host = self.host_ip.ok_or_else(|| {
                fail("tap", "--host-ip (ports.host-ip) is missing, Linux's address on the device".to_owned())
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
            return Err(fail(
                "fault",
                "there is no port to apply faults to: give --tap, --xdp or --pcap, too".to_owned(),
            ));
        };
        Ok(vec![Box::new(FaultPort::new(inner, spec))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_device_has_its_peers_on_this_machine() {
        let tap = PortOptions { tap: Some("tw0".to_owned()), ..PortOptions::default() };
        assert!(tap.has_local_peer());
        let absent = PortOptions { xdp: Some("no-such-if".to_owned()), ..PortOptions::default() };
        assert!(!absent.has_local_peer() && !PortOptions::default().has_local_peer());
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
