use crate::config::{Config, ConfigError};
use crate::firewall::{Action, Direction};

const RULE: &str = "mtu = 1500\n\n[[firewall.rule]]\ndirection = \"ingress\"\naction = \"allow\"\n";

#[test]
fn a_full_section_is_read_and_survives_a_file() {
    let text = r#"
        [firewall]
        ingress = "deny"
        multicast = "drop"
        ethertypes = [0x88b5]
        [[firewall.rule]]
        name = "web"
        runtime = "kv"
        direction = "ingress"
        action = "allow"
        protocol = "tcp"
        remote = ["10.0.0.0/8", "2001:db8::/32"]
        local-port = [80, "8000-8099"]
        [[firewall.rule]]
        direction = "both"
        action = "allow"
        protocol = 132
        remote = "10.77.0.9"
        [[firewall.limit]]
        runtime = "batch"
        direction = "egress"
        bits-per-s = 1_000_000_000
    "#;
    let config = Config::from_toml(text).unwrap();
    let (web, other) = (&config.firewall.rules[0], &config.firewall.rules[1]);
    assert_eq!((web.remote.len(), web.local_port.len(), web.shown_name(1)), (2, 2, "web".to_owned()));
    assert_eq!(web.local_port[1].to_string(), "8000-8099");
    assert_eq!(
        (other.remote[0].to_string(), other.shown_name(2)),
        ("10.77.0.9/32".to_owned(), "2".to_owned())
    );
    assert_eq!((config.firewall.egress, config.firewall.ingress), (Action::Allow, Action::Deny));
    let limit = &config.firewall.limits[0];
    assert_eq!(
        (limit.direction, limit.burst_bytes(), limit.burst_frames()),
        (Direction::Egress, 125_000, 64)
    );
    assert_eq!(Config::from_toml(&toml::to_string(&config).unwrap()).unwrap(), config);
}

#[test]
fn what_is_wrong_with_a_rule_is_said_with_its_line() {
    for (line, says) in [
        ("remote = \"10.0.0.1/8\"", "write 10.0.0.0/8"),
        ("remote = \"fd00::1/64\"", "write fd00::/64"),
        ("remote = \"10.0.0.0/33\"", "32 bits"),
        ("remote = [\"10.0.0.0/8\", \"ten\"]", "`ten` is not a prefix"),
        ("remote = []", "leave the key out"),
        ("local-port = \"80-70\"", "write \"70-80\""),
        ("local-port = 65536", "`65536` is not a port"),
        ("local-port = -1", "is not a port"),
        ("remote-port = [80, \"http\"]", "`http` is not a port"),
        ("protocol = \"sctp\"", "`sctp` is not a protocol"),
        ("protocol = 256", "0 to 255"),
        ("protocol = true", "expected \"tcp\""),
        ("source = \"10.0.0.0/8\"", "unknown key `source`"),
    ] {
        let error = Config::from_toml(&format!("{RULE}{line}\n")).unwrap_err().to_string();
        assert!(error.contains("line 6") && error.contains(says), "{line}: {error}");
    }
}

#[test]
fn contradictions_within_a_rule_name_its_table() {
    for (lines, says) in [
        ("protocol = \"icmp\"\nlocal-port = 80", "only tcp and udp have ports"),
        ("protocol = \"udp\"\nestablished = true", "only tcp has established"),
        ("remote = \"fd00::/8\"\nlocal = \"10.0.0.0/8\"", "different IP versions"),
    ] {
        let error = Config::from_toml(&format!("{RULE}{lines}\n")).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains(says), "{lines}: {error}");
    }
    let missing = Config::from_toml("[[firewall.rule]]\naction = \"deny\"").unwrap_err().to_string();
    assert!(missing.contains("line 1") && missing.contains("`direction`"), "{missing}");
}

#[test]
fn impossible_limits_and_ethertypes_name_the_key() {
    for (text, key) in [
        ("[[firewall.limit]]\nframes-per-s = 0", "firewall.limit.frames-per-s"),
        ("[[firewall.limit]]\nbits-per-s = 2_000_000_000_000", "firewall.limit.bits-per-s"),
        ("[[firewall.limit]]\nbits-per-s = 9\nburst-bytes = 1500", "firewall.limit.burst-bytes"),
        ("[[firewall.limit]]\nbits-per-s = 9\nburst-frames = 15", "firewall.limit.burst-frames"),
        ("[[firewall.limit]]\ndirection = \"egress\"", "firewall.limit"),
        ("[firewall]\nethertypes = [0x0800]", "firewall.ethertypes"),
        ("[firewall]\nethertypes = [0x8100]", "firewall.ethertypes"),
        ("[firewall]\nethertypes = [100]", "firewall.ethertypes"),
    ] {
        let error = Config::from_toml(text).unwrap_err();
        assert!(matches!(error, ConfigError::Value { key: k, .. } if k == key), "{text}: {error}");
    }
}

#[test]
fn more_tests_than_a_packet_may_cost_are_refused() {
    let list = |n: usize| {
        (0..n).map(|i| format!("\"10.{}.{}.0/24\"", i / 256, i % 256)).collect::<Vec<_>>().join(", ")
    };
    let rule = |runtime: &str, n| format!("{}runtime = \"{runtime}\"\nremote = [{}]\n", &RULE[12..], list(n));
    assert!(Config::from_toml(&rule("kv", 256)).is_ok());
    let error = Config::from_toml(&rule("kv", 257)).unwrap_err().to_string();
    assert!(error.contains("257 combinations") && error.contains("line 1"), "{error}");
    let several = [rule("kv", 200), rule("batch", 200)].concat();
    assert!(Config::from_toml(&several).is_ok(), "about different runtimes");
    let error = Config::from_toml(&[several, rule("kv", 57)].concat()).unwrap_err().to_string();
    assert!(error.contains("rules about kv") && error.contains("257"), "{error}");
}
