//! What a server's answers mean for locks.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};

use super::super::address::{EXPOSED, is_exposed, is_this_machine};
use super::{Facts, Said};
use crate::doctor::{Bytes, Finding, Fine};
use crate::error::Short;

/// Beyond this two clocks do not agree.
const CLOCK_OFF: Duration = Duration::from_secs(1);

/// Part of a limit that is nearly all of it.
const NEARLY_PERCENT: u64 = 90;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = match &facts.info {
        Some(info) => vec![
            server(info),
            role(info),
            replicas(info, facts.config.as_ref()),
            persistence(info, facts.config.as_ref()),
            memory(info),
            clients(info),
        ],
        None => ["server", "role", "replicas", "persistence", "memory", "clients"]
            .into_iter()
            .map(|check| unseen(check, "INFO"))
            .collect(),
    };
    findings.push(settings(facts.config.as_ref()));
    match facts.clock {
        Some((ahead_us, round_trip)) => {
            findings.extend([clock(ahead_us), travels(round_trip, facts.timeout)]);
        }
        None => findings.push(unseen("clock", "TIME")),
    }
    findings.push(fence(facts.fence.as_ref()));
    findings
}

fn unseen(check: &'static str, command: &str) -> Finding {
    let allowed = command.to_ascii_lowercase().replace(' ', "|");
    Finding::caution(
        check,
        format!("could not be seen: this user may not ask for {command}"),
        format!("allow it (`+{allowed}`), or look with a user who may"),
    )
}

fn number(said: &Said, key: &str) -> Option<u64> {
    said.get(key)?.parse().ok()
}

fn word<'a>(said: &'a Said, key: &str) -> &'a str {
    said.get(key).map_or("", String::as_str)
}

fn server(info: &Said) -> Finding {
    let (name, version) = match info.get("valkey_version") {
        Some(version) => ("Valkey", version.as_str()),
        None => ("Redis", word(info, "redis_version")),
    };
    let mode = [word(info, "redis_mode"), word(info, "server_mode")].concat();
    let what = format!("{name} {version}");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match mode.as_str() {
        "cluster" => Finding::bad(
            "server",
            format!("{what}, part of a cluster"),
            "name a server that is none: this store is one server",
        ),
        "sentinel" => Finding::bad(
            "server",
            format!("{what}, a Sentinel, which keeps no data"),
            "name the master that it watches",
        ),
        _ if major.is_some_and(|major| major >= 7) => Finding::good("server", what),
        _ => {
            Finding::caution("server", what, "use Redis 7.0 or later, or Valkey: what is older is not tested")
        }
    }
}

fn role(info: &Said) -> Finding {
    match word(info, "role") {
        "master" => Finding::good("role", "master"),
        "slave" => {
            let master = format!("{}:{}", word(info, "master_host"), word(info, "master_port"));
            Finding::bad("role", format!("a replica of {master}; it takes no locks"), "name its master")
        }
        other => Finding::caution("role", format!("`{other}` is not known here"), "name a master"),
    }
}

fn replicas(info: &Said, config: Option<&Said>) -> Finding {
    let connected = number(info, "connected_slaves").unwrap_or(0);
    let wanted = config.and_then(|config| number(config, "min-replicas-to-write")).unwrap_or(0);
    let replicas = match connected {
        0 => "none".to_owned(),
        1 => "one".to_owned(),
        n => n.to_string(),
    };
    if word(info, "role") == "slave" {
        Finding::good("replicas", format!("{replicas}, behind this one"))
    } else if connected < wanted {
        Finding::bad(
            "replicas",
            format!("{replicas}, and without {wanted} it takes no locks (`min-replicas-to-write`)"),
            "see that they run and can reach it",
        )
    } else if connected == 0 {
        Finding::good("replicas", "none: there is no failover that could forget a lock")
    } else if wanted > 0 {
        Finding::good("replicas", format!("{replicas}; it takes no locks without {wanted} of them"))
    } else {
        Finding::caution(
            "replicas",
            format!("{replicas}, which may lag: a lock taken just before a failover may be forgotten by it"),
            "have what is protected check fences; `min-replicas-to-write 1` makes it less likely",
        )
    }
}

fn persistence(info: &Said, config: Option<&Said>) -> Finding {
    let check = "persistence";
    let forgotten = "so that two may hold one for as long as a TTL";
    let advice = "`appendonly yes` keeps locks over a restart; or have what is protected check fences";
    if word(info, "aof_last_write_status") == "err" || word(info, "rdb_last_bgsave_status") == "err" {
        let what = "the last attempt to write data to disk failed, and a server may refuse locks for that";
        return Finding::bad(check, what, "see its log: the disk may be full, or the directory not writable");
    }
    if word(info, "aof_enabled") == "1" {
        return match config.map(|config| word(config, "appendfsync")) {
            Some("always") => Finding::good(check, "append-only file, written before each answer"),
            Some("no") => Finding::caution(
                check,
                format!(
                    "append-only file, written when the system likes: a power cut forgets some locks, {forgotten}"
                ),
                "`appendfsync everysec` or `always`",
            ),
            Some(_) => Finding::good(
                check,
                "append-only file, written every second: a power cut forgets the last one",
            ),
            None => Finding::good(check, "append-only file; how often it is written could not be seen"),
        };
    }
    match config.map(|config| word(config, "save")) {
        Some("") => {
            Finding::caution(check, format!("none: a restart forgets all locks, {forgotten}"), advice)
        }
        Some(_) => Finding::caution(
            check,
            format!("snapshots only: a crash forgets the locks taken since the last, {forgotten}"),
            advice,
        ),
        None => Finding::caution(
            check,
            format!(
                "no append-only file: a crash may forget locks, {forgotten}; whether there are snapshots could not be seen"
            ),
            advice,
        ),
    }
}

/// Whether locks may be thrown away when memory is full, and what to do.
pub(super) fn eviction(info: &Said) -> Option<String> {
    let (limit, policy) = (number(info, "maxmemory")?, word(info, "maxmemory_policy"));
    (limit > 0 && policy != "noeviction").then(|| {
        format!(
            "the redis store may throw locks away when its memory is full (`maxmemory-policy {policy}`), so that two may hold \
             one; set `maxmemory-policy noeviction`, or use a server of its own for locks"
        )
    })
}

fn memory(info: &Said) -> Finding {
    let check = "memory";
    let (used, limit) = (number(info, "used_memory").unwrap_or(0), number(info, "maxmemory").unwrap_or(0));
    let policy = word(info, "maxmemory_policy");
    let evicts = policy != "noeviction";
    let setting = "`maxmemory-policy noeviction`";
    match limit {
        0 if evicts => Finding::caution(
            check,
            format!(
                "{} used, without a limit; but should one be set, locks may be thrown away (`{policy}`)",
                Bytes(used)
            ),
            setting,
        ),
        0 => Finding::good(check, format!("{} used, without a limit, and nothing is evicted", Bytes(used))),
        _ if evicts => Finding::bad(
            check,
            format!(
                "{} of {} used; when it is full, locks may be thrown away (`{policy}`)",
                Bytes(used),
                Bytes(limit)
            ),
            setting,
        ),
        _ if is_nearly(used, limit) => Finding::caution(
            check,
            format!("{} of {} used; when it is full, no lock can be taken", Bytes(used), Bytes(limit)),
            "raise `maxmemory`, or take away what is not needed",
        ),
        _ => {
            Finding::good(check, format!("{} of {} used, and nothing is evicted", Bytes(used), Bytes(limit)))
        }
    }
}

fn clients(info: &Said) -> Finding {
    let check = "clients";
    let connected = number(info, "connected_clients").unwrap_or(0);
    let Some(limit) = number(info, "maxclients").filter(|limit| *limit > 0) else {
        return Finding::good(check, format!("{connected} connected"));
    };
    let what = format!("{connected} connected, of {limit} at most");
    match is_nearly(connected, limit) {
        true => Finding::caution(check, what, "raise `maxclients`: who comes too late gets no lock"),
        false => Finding::good(check, what),
    }
}

fn is_nearly(part: u64, whole: u64) -> bool {
    part.saturating_mul(100) >= whole.saturating_mul(NEARLY_PERCENT)
}

fn settings(config: Option<&Said>) -> Finding {
    let Some(config) = config else { return unseen("settings", "CONFIG GET") };
    let keepalive = number(config, "tcp-keepalive").unwrap_or(0);
    // A client that listens on a channel, as each of ours does, is not among those that this closes.
    let idle = match number(config, "timeout").unwrap_or(0) {
        0 => "idle connections stay open".to_owned(),
        seconds => format!(
            "connections idle for {} are closed, but not those of locks",
            Short(Duration::from_secs(seconds))
        ),
    };
    match keepalive {
        0 => Finding::caution(
            "settings",
            format!("{idle}; clients that are gone without a word are never noticed (`tcp-keepalive 0`)"),
            "`tcp-keepalive 300`",
        ),
        seconds => Finding::good(
            "settings",
            format!("{idle}; silent ones are looked after every {}", Short(Duration::from_secs(seconds))),
        ),
    }
}

fn clock(ahead_us: i64) -> Finding {
    let off = Duration::from_micros(ahead_us.unsigned_abs());
    let side = if ahead_us < 0 { "behind" } else { "ahead of" };
    let what = match off.as_millis() {
        0 => "the server's agrees with this machine's to a millisecond".to_owned(),
        _ => format!("the server's is {} {side} this machine's", Fine(off)),
    };
    match off < CLOCK_OFF {
        true => Finding::good("clock", what),
        false => Finding::caution(
            "clock",
            what,
            "have both set by NTP: fences follow the server's, and one that is put right in a step ends leases early or late",
        ),
    }
}

fn travels(round_trip: Duration, timeout: Duration) -> Finding {
    let what = format!("{} at the median, of {} that a request may take", Fine(round_trip), Short(timeout));
    match round_trip < timeout / 4 {
        true => Finding::good("round trip", what),
        false => Finding::caution(
            "round trip",
            what,
            "use a nearer server, or a longer `?timeout=` and longer TTLs",
        ),
    }
}

fn fence(fence: Option<&Result<Option<i64>, String>>) -> Finding {
    let advice = "see that the server's clock is right; fences go on rising from there all the same";
    match fence {
        None => Finding::caution(
            "fence",
            "could not be seen: this user may not read its key",
            "see what is said of its rights",
        ),
        Some(Ok(None)) => Finding::good("fence", "none has been given yet"),
        Some(Ok(Some(ahead_us))) => {
            let apart = Fine(Duration::from_micros(ahead_us.unsigned_abs())).to_string();
            match *ahead_us > CLOCK_OFF.as_micros() as i64 {
                true => Finding::caution(
                    "fence",
                    format!(
                        "the last one is {apart} ahead of the server's clock, which was set back, or the data is another's"
                    ),
                    advice,
                ),
                false => Finding::good(
                    "fence",
                    format!("the last one was given {apart} ago, by the server's clock"),
                ),
            }
        }
        Some(Err(instead)) => Finding::bad(
            "fence",
            format!("{instead} stands where the last fence should"),
            "use another `?prefix=`: somebody else uses these keys",
        ),
    }
}

/// Who could listen, and who could get in.
pub(super) fn network(info: &ConnectionInfo, config: Option<&Said>) -> Finding {
    let check = "network";
    let has_password = info.redis_settings().password().is_some();
    let is_open = config.is_some_and(|config| {
        let near =
            |address: &str| matches!(address.trim_start_matches('-'), "127.0.0.1" | "::1" | "localhost");
        word(config, "protected-mode") == "no" && !word(config, "bind").split_whitespace().all(near)
    });
    let password = "set a password (`requirepass`, or an ACL user) and give it to its clients";
    match info.addr() {
        _ if is_exposed(info) => Finding::caution(
            check,
            EXPOSED,
            "use TLS (`rediss://`), or a network that nobody else listens on",
        ),
        _ if !has_password && is_open => Finding::caution(
            check,
            "whoever reaches the server may do anything: it wants no password, and listens to other machines",
            password,
        ),
        ConnectionAddr::Tcp(host, _) if !is_this_machine(host) => {
            Finding::caution(check, "the server is on another machine, and wants no password", password)
        }
        ConnectionAddr::Tcp(..) => Finding::good(check, "the connection stays on this machine"),
        ConnectionAddr::Unix(_) => Finding::good(check, "a socket of this machine"),
        _ => Finding::good(check, "encrypted"),
    }
}
