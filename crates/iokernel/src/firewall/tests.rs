use super::*;
use crate::config::Config;

/// Returns an IPv4 frame with a TCP header that has these flags.
fn tcp(source: [u8; 4], destination: [u8; 4], ports: (u16, u16), flags: u8) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
    (frame[22], frame[23]) = (64, 6);
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&destination);
    frame[34..36].copy_from_slice(&ports.0.to_be_bytes());
    frame[36..38].copy_from_slice(&ports.1.to_be_bytes());
    frame[47] = flags;
    frame
}

const SERVICE: [u8; 4] = [10, 77, 0, 2];
const WORLD: [u8; 4] = [192, 0, 2, 1];

fn config(text: &str) -> FirewallConfig {
    Config::from_toml(text).unwrap().firewall
}

fn judge(
    guard: &mut Option<Box<Guard>>,
    stats: &FirewallStats,
    direction: Direction,
    frame: &[u8],
) -> Ruling {
    guard.as_mut().expect("there are rules").judge(direction, frame, frame.len(), 0, stats)
}

#[test]
fn a_runtime_without_rules_and_limits_has_no_guard() {
    assert!(Guard::compile(&FirewallConfig::default(), "kv", 1).is_none());
    let about_another =
        config("[[firewall.rule]]\nruntime = \"batch\"\ndirection = \"egress\"\naction = \"deny\"");
    assert!(Guard::compile(&about_another, "kv", 1).is_none());
    assert!(Guard::compile(&about_another, "batch", 1).is_some());
}

#[test]
fn a_service_answers_but_opens_nothing() {
    let config = config(
        r#"
        [firewall]
        egress = "deny"
        ingress = "deny"
        [[firewall.rule]]
        direction = "ingress"
        action = "allow"
        protocol = "tcp"
        local-port = 80
        [[firewall.rule]]
        direction = "egress"
        action = "allow"
        established = true
        "#,
    );
    let (stats, mut guard) = (FirewallStats::new(&config), Guard::compile(&config, "kv", 1));
    let mut judge = |direction, frame: &[u8]| judge(&mut guard, &stats, direction, frame);
    let (syn, ack) = (2, 0x10);
    assert_eq!(judge(Direction::Ingress, &tcp(WORLD, SERVICE, (5, 80), syn)), Ruling::Pass);
    assert_eq!(judge(Direction::Egress, &tcp(SERVICE, WORLD, (80, 5), syn | ack)), Ruling::Pass);
    assert_eq!(judge(Direction::Egress, &tcp(SERVICE, WORLD, (80, 5), 4)), Ruling::Pass, "a reset");
    assert_eq!(judge(Direction::Egress, &tcp(SERVICE, WORLD, (5, 80), syn)), Ruling::Denied);
    assert_eq!(judge(Direction::Ingress, &tcp(WORLD, SERVICE, (5, 81), syn)), Ruling::Denied);
    let counted: Vec<u64> = stats.rules.iter().map(|rule| rule.matched.get()).collect();
    assert_eq!((counted, stats.counters.denied_by_default.get()), (vec![1, 2], 2));
}

#[test]
fn housekeeping_passes_and_what_cannot_be_read_does_not() {
    let config = config("[firewall]\nlimit = [{ frames-per-s = 1, burst-frames = 3 }]\ningress = \"deny\"");
    let (stats, mut guard) = (FirewallStats::new(&config), Guard::compile(&config, "kv", 1));
    let mut judge = |frame: &[u8]| judge(&mut guard, &stats, Direction::Ingress, frame);
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(judge(&arp), Ruling::Pass);
    let mut solicitation = vec![0; 86];
    solicitation[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
    solicitation[54] = 135;
    assert_eq!(judge(&solicitation), Ruling::Pass);
    solicitation[21] = 64;
    assert_eq!(judge(&solicitation), Ruling::Denied, "from beyond a router");
    let mut tagged = arp.clone();
    tagged[12] = 0x81;
    let mut tiny = tcp(WORLD, SERVICE, (1, 80), 2);
    tiny[20..22].copy_from_slice(&[0, 1]);
    for opaque in [&tagged[..], &arp[..12], &tcp(WORLD, SERVICE, (1, 2), 2)[..40], &tiny] {
        assert_eq!(judge(opaque), Ruling::Denied, "{opaque:?}");
    }
    assert_eq!((stats.counters.opaque.get(), stats.counters.denied_by_default.get()), (4, 1));
    assert_eq!((judge(&arp), judge(&arp)), (Ruling::Pass, Ruling::Limited), "but counts");
}
