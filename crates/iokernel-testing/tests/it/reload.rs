//! Firewall rules that change while programs run.

use std::time::Duration;

use crate::common::{Running, STATION, ask, config, endpoint, eventually};
use tailwater_iokernel::Config;
use tailwater_iokernel::firewall::FirewallConfig;
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::wire::udp;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};

#[test]
fn new_firewall_rules_hold_for_programs_that_run_and_for_those_that_come() {
    let config = config();
    let (iokernel, station) = Running::with_station(config.clone());
    let start = |name: &str| {
        RawRuntime::start(&iokernel.socket, &RawSpec::new(name), |_| Box::<Echo>::default()).unwrap()
    };
    let reload = |rules: &str| {
        let firewall: FirewallConfig = Config::from_toml(rules).unwrap().firewall;
        iokernel.reloader.reload(Config { firewall, ..config.clone() }).unwrap()
    };
    let first = start("first");
    ask(&station, endpoint(&first), 1);
    let changes = reload(
        "[firewall]\ningress = \"deny\"\n[[firewall.rule]]\nname = \"none\"\nruntime = \"first\"\n\
                          direction = \"ingress\"\naction = \"deny\"\nprotocol = \"udp\"",
    );
    assert_eq!((&changes.applied[..], &changes.need_restart[..]), (&["firewall".to_owned()][..], &[][..]));
    let second = start("second");
    for (name, to) in [("first", &first), ("second", &second)] {
        eventually("frames for it are denied", || {
            station.send(&udp(STATION, endpoint(to), b"?"));
            iokernel.counter(name, |counters| counters.rx_denied.get()) > 0
        });
    }
    let rules = iokernel.stats.firewall();
    assert_eq!(rules.rules[0].name, "none");
    assert!(rules.rules[0].matched.get() > 0 && rules.counters.denied_by_default.get() > 0);
    assert!(reload("").applied == ["firewall"]);
    // The polling thread may deny one more before it has the new rules.
    let mut number = 1u64;
    eventually("its frames pass again", || {
        number += 1;
        let payload = [[0; 16].as_slice(), &number.to_le_bytes()].concat();
        station.send(&udp(STATION, endpoint(&first), &payload));
        let answers = std::iter::from_fn(|| station.receive_timeout(Duration::from_millis(100)));
        answers.take(100).any(|answer| answer.ends_with(&number.to_le_bytes()))
    });
    ask(&station, endpoint(&first), u64::MAX);
    ask(&station, endpoint(&second), u64::MAX - 1);
    assert!(iokernel.stats.firewall().rules.is_empty());
}
