//! `tailwater doctor --interface`: whether an interface suits an AF_XDP port, and what to set.
//!
//! Owns the judgement of what was read ([`Card`]). The limits of drivers are from their
//! documentation and from the drivers themselves in Linux.

use tailwater_ports::card::{Attached, Card, Channels, keep_tags};
use tailwater_ports::xdp::{MAX_MTU, MAX_QUEUES};

use super::part::{Part, Status};

/// Longest IP packets with which drivers run XDP in native mode: those that receive into half a
/// page or less.
const DRIVER_MTUS: [(&str, u32); 4] = [("ena", 3498), ("gve", 2030), ("virtio_net", 3506), ("veth", 3506)];

/// Drivers that refuse native XDP, or send more slowly, with more than half of their channels.
const HALVED: [&str; 3] = ["ena", "gve", "virtio_net"];

/// Returns a line for each setting of this interface.
///
/// # Errors
/// If there is none of this name.
pub fn examine(name: &str) -> Result<Vec<Part>, String> {
    Ok(judge(name, &Card::read(name)?))
}

fn judge(name: &str, card: &Card) -> Vec<Part> {
    let lines = [
        ("XDP mode", mode(card)),
        ("zero copy", zero_copy(card)),
        ("XDP program", attached(name, card)),
        ("channels", channels(name, card)),
        ("queues", queues(card)),
        ("MTU", mtu(name, card)),
        ("LRO", lro(name, card)),
        ("VLAN tags", tags(name, card)),
        ("receive checksums", checksums(card)),
    ];
    let part = |(name, (status, found))| Part { name, status, found };
    lines.into_iter().map(part).collect()
}

fn mode(card: &Card) -> (Status, String) {
    let driver = if card.driver.is_empty() { "an unnamed driver" } else { &card.driver };
    match card.features {
        None => {
            (Status::Ok, format!("{driver}: this kernel does not say; `iokernel --xdp` tries native first"))
        }
        Some(features) if features.runs_native() => (Status::Ok, format!("{driver}: native")),
        Some(_) => (
            Status::Caution,
            format!("{driver}: skb only, slower, since the driver redirects no frames; a newer driver may"),
        ),
    }
}

fn zero_copy(card: &Card) -> (Status, String) {
    let none = "the kernel copies each frame once; a driver with zero copy saves that".to_owned();
    match card.features {
        Some(features) if features.has_zero_copy() => (
            Status::Ok,
            "the driver has it; with `share`, where Linux uses the same queues, only `zero-copy=on` uses it"
                .to_owned(),
        ),
        Some(_) => (Status::Absent, none),
        None => (
            Status::Ok,
            "this kernel does not say; `iokernel --xdp` tries it first, unless with `share`".to_owned(),
        ),
    }
}

fn attached(name: &str, card: &Card) -> (Status, String) {
    if card.attached.is_empty() {
        return (Status::Ok, "none is attached".to_owned());
    }
    let (attached, remedies) = Attached::describe(&card.attached, name);
    let found = format!(
        "{attached}, perhaps an IOKernel's that runs (those are named tailwater), and no other can be; to take it \
         away: {remedies}"
    );
    (Status::Caution, found)
}

fn channels(name: &str, card: &Card) -> (Status, String) {
    let Some(Channels { max_receive, max_combined, receive, combined }) = card.channels else {
        return (Status::Ok, "the driver reports none".to_owned());
    };
    let (used, most, word) =
        if max_combined > 0 { (combined, max_combined, "combined") } else { (receive, max_receive, "rx") };
    let found = format!("{used} of {most}");
    let half = most / 2;
    if used <= half || !HALVED.contains(&&*card.driver) {
        return (Status::Ok, found);
    }
    if half == 0 {
        let why =
            "the driver wants as many again for XDP and has none: it sends more slowly, or in skb mode only";
        return (Status::Caution, format!("{found}: {why}; give the machine more queues"));
    }
    let why = format!(
        "the driver wants as many again for XDP: `ethtool -L {name} {word} {half}{}`",
        if word == "rx" { format!(" tx {half}") } else { String::new() }
    );
    (Status::Caution, format!("{found}: {why}"))
}

fn queues(card: &Card) -> (Status, String) {
    let shown = card.receive_queues;
    if shown > MAX_QUEUES {
        let found = format!(
            "{shown} receive queues, of which a port uses {MAX_QUEUES}; frames of the others go to Linux: use fewer channels"
        );
        return (Status::Caution, found);
    }
    let reported = card.channels.map_or(0, |channels| channels.receive + channels.combined);
    if reported > 0 && reported < shown && card.driver == "hv_netvsc" {
        let found = format!(
            "{reported} channels and {shown} receive queues: a virtual function below may use more than are reported; \
             frames of those go to Linux"
        );
        return (Status::Caution, found);
    }
    (Status::Ok, format!("{shown} receive queues"))
}

fn mtu(name: &str, card: &Card) -> (Status, String) {
    let (mtu, port) = (card.mtu, u32::from(MAX_MTU));
    let driver =
        DRIVER_MTUS.iter().find(|(driver, _)| *driver == card.driver).map_or(port, |(_, most)| *most);
    let remedy = format!("`ip link set {name} mtu {}`", port.min(driver));
    if mtu > port {
        return (Status::Caution, format!("{mtu}: a port takes packets of up to {port} bytes: {remedy}"));
    }
    if mtu > driver {
        let found = format!("{mtu}: {} runs native mode up to about {driver}: {remedy}", card.driver);
        return (Status::Caution, found);
    }
    (Status::Ok, format!("{mtu}"))
}

fn lro(name: &str, card: &Card) -> (Status, String) {
    match card.lro {
        Some(true) => (
            Status::Caution,
            format!(
                "on: received segments are joined before a program sees them: `ethtool -K {name} lro off`"
            ),
        ),
        Some(false) => (Status::Ok, "off".to_owned()),
        None => (Status::Ok, "not reported".to_owned()),
    }
}

fn tags(name: &str, card: &Card) -> (Status, String) {
    let remedy = keep_tags(name, &card.driver);
    match (card.strips_tags, card.has_vlans) {
        (Some(true), true) => {
            let found =
                format!("taken off by the card: programs receive the frames of Linux's VLANs: {remedy}");
            (Status::Caution, found)
        }
        (Some(true), false) => {
            (Status::Ok, format!("taken off by the card; if the wire carries VLANs, {remedy}"))
        }
        (Some(false), _) => (Status::Ok, "left on: such frames are Linux's".to_owned()),
        (None, _) => (Status::Ok, "not reported".to_owned()),
    }
}

fn checksums(card: &Card) -> (Status, String) {
    let found = match card.receive_checksums {
        Some(true) if card.driver == "veth" => {
            let found = "left out by the other end: `ethtool -K PEER tx off gso off tso off` there, or fill-checksums";
            return (Status::Caution, found.to_owned());
        }
        Some(true) => "checked by the card, and again by programs",
        Some(false) => "checked by programs",
        None => "not reported; checked by programs",
    };
    (Status::Ok, found.to_owned())
}

#[cfg(test)]
mod tests {
    use tailwater_ports::card::Features;

    use super::*;

    fn good() -> Card {
        Card {
            driver: "ena".to_owned(),
            mtu: 1500,
            receive_queues: 4,
            channels: Some(Channels { max_receive: 0, max_combined: 8, receive: 0, combined: 4 }),
            lro: Some(false),
            strips_tags: Some(true),
            has_vlans: false,
            receive_checksums: Some(true),
            attached: Vec::new(),
            features: Some(Features::from_bits(0b1011)),
        }
    }

    fn line(card: &Card, name: &str) -> Part {
        judge("eth0", card).into_iter().find(|part| part.name == name).unwrap()
    }

    #[test]
    fn nothing_is_to_be_done_for_a_good_card() {
        assert!(
            judge("eth0", &good()).iter().all(|part| part.status == Status::Ok),
            "{:?}",
            judge("eth0", &good())
        );
    }

    #[test]
    fn every_setting_that_is_wrong_is_named_with_its_remedy() {
        let channels =
            |combined, max_combined| Some(Channels { max_receive: 0, max_combined, receive: 0, combined });
        let of = |mode| vec![Attached { mode, id: 42, name: Some("firewall".to_owned()) }];
        for (name, card, part) in [
            ("channels", Card { channels: channels(8, 8), ..good() }, "ethtool -L eth0 combined 4"),
            ("channels", Card { channels: channels(1, 1), ..good() }, "more queues"),
            ("queues", Card { receive_queues: 40, ..good() }, "fewer channels"),
            (
                "queues",
                Card { driver: "hv_netvsc".to_owned(), receive_queues: 8, ..good() },
                "virtual function",
            ),
            ("MTU", Card { mtu: 9001, ..good() }, "up to 3826 bytes: `ip link set eth0 mtu 3498"),
            ("MTU", Card { mtu: 3600, ..good() }, "mtu 3498"),
            ("LRO", Card { lro: Some(true), ..good() }, "ethtool -K eth0 lro off"),
            ("VLAN tags", Card { has_vlans: true, ..good() }, "ethtool -K eth0 rxvlan off"),
            (
                "VLAN tags",
                Card { has_vlans: true, driver: "veth".to_owned(), ..good() },
                "ethtool -K PEER txvlan off",
            ),
            ("XDP program", Card { attached: of("native"), ..good() }, "program 42 (firewall, native)"),
            ("XDP program", Card { attached: of("skb"), ..good() }, "dev eth0 xdpgeneric off"),
            ("XDP mode", Card { features: Some(Features::from_bits(0)), ..good() }, "skb only"),
            ("receive checksums", Card { driver: "veth".to_owned(), ..good() }, "fill-checksums"),
        ] {
            let Part { status, found, .. } = line(&card, name);
            assert!(status == Status::Caution && found.contains(part), "{name}: {found}");
        }
        assert_eq!(
            line(&Card { features: Some(Features::from_bits(3)), ..good() }, "zero copy").status,
            Status::Absent
        );
        let unknown = Card { features: None, channels: None, lro: None, receive_checksums: None, ..good() };
        assert!(judge("eth0", &unknown).iter().all(|part| part.status == Status::Ok));
    }
}
