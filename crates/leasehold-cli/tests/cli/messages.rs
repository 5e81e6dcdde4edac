//! Every message a user can meet, collected in `messages.txt`: read that as a stranger would. Each says what happened, to
//! what, and what to do.
//!
//! `LEASEHOLD_BLESS=1` writes the file anew.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::terminal::Terminal;
use crate::common::{Home, Running, said, until};

/// The transcript.
#[derive(Default)]
struct Page(String);

impl Page {
    fn chapter(&mut self, title: &str) {
        self.0 += &format!("\n==== {title}\n");
    }

    fn note(&mut self, home: &Home, line: &str, (code, out, told): (i32, String, String)) {
        self.0 += &format!("\n$ leasehold {line}\n");
        for (text, mark) in [(out, ""), (told, "! ")] {
            self.0.extend(general(home, &text).lines().map(|line| format!("{mark}{line}\n")));
        }
        self.0 += &format!("[exit {code}]\n");
    }

    /// Runs a line, and notes what came of it.
    fn run(&mut self, home: &Home, line: &str) {
        let words = words(line);
        self.note(home, line, said(home.leasehold().args(words)));
    }
}

/// As a shell would, with nothing but single quotes.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    parts
        .flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

/// What differs from run to run is left out: where it is, processes, fences, and how long something took or lasts.
fn general(home: &Home, text: &str) -> String {
    const BEFORE_A_PID: [&str; 4] = ["pid ", "HOST:", "runs: ", "process "];
    const BEFORE_A_TIME: [&str; 5] = ["ends in ", " after ", "another ", "waited ", "(for "];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let text = text.replace(&home.path().display().to_string(), "HOME").replace(host.trim(), "HOST");
    let text = without_times(&text);
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        out += &rest[..at];
        let end = rest[at..].find(|c: char| !c.is_ascii_digit() && c != '.').map_or(rest.len(), |n| at + n);
        let number = &rest[at..end];
        rest = &rest[end..];
        let follows = |words: &[&str]| words.iter().any(|word| out.ends_with(word));
        let unit = [" ms", " s", " min", " h"].into_iter().find(|unit| rest.starts_with(unit));
        match unit {
            // A column of `ls`, or a time that passed.
            Some(unit) if follows(&BEFORE_A_TIME) || rest[unit.len()..].starts_with("  ") => {
                out += "TIME";
                rest = &rest[unit.len()..];
                if rest.starts_with("  ") {
                    out += "  ";
                    rest = rest.trim_start_matches(' ');
                }
            }
            _ if follows(&BEFORE_A_PID) => out += "PID",
            _ if number.len() > 12 => out += "FENCE",
            _ => out += number,
        }
    }
    out + rest
}

/// `2026-11-18T07:05:09Z` is `POINT`.
fn without_times(text: &str) -> String {
    const SHAPE: &str = "0000-00-00T00:00:00Z";
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let mut out = text.to_owned();
    for (at, _) in shape.match_indices(SHAPE).collect::<Vec<_>>().into_iter().rev() {
        out.replace_range(at..at + SHAPE.len(), "POINT");
    }
    out
}

fn ready(home: &Home, args: &[&str]) -> Running {
    let mut running = home.start_with([], |command| {
        command.args(args);
    });
    assert_eq!(running.line(), "ready");
    running
}

#[test]
fn every_message_says_what_happened_to_what_and_what_to_do() {
    let mut page = Page::default();
    let home = Home::in_memory();

    page.chapter("the manual");
    for line in [
        "--help",
        "help run",
        "help elect",
        "help lock",
        "help evict",
        "help adopt",
        "help latch",
        "help latch wait",
        "help rate",
        "help doctor",
    ] {
        page.run(&home, line);
    }

    page.chapter("what makes no sense");
    for line in [
        "",
        "frobnicate",
        "run",
        "run x",
        "run x -- ''",
        "run {x} -- true",
        "run '' -- true",
        "run a/../b -- true",
        "run x -c true -- true",
        "run -n -w 1 x -- true",
        "run -w never x -- true",
        "run -w 9999d x -- true",
        "run -E 256 x -- true",
        "run --permits 2/3 x -- true",
        "run -s -x x -- true",
        "run --signal NONE x -- true",
        "run --on-lost panic x -- true",
        "run --ttl 1s x -- true",
        "run --ttl 10s -k 5s x -- true",
        "run --ttl 5ms --on-lost continue x -- true",
        "run --max-runtime 0 x -- true",
        "run --owner '' x -- true",
        "run --on-lost-exec nothing x -- true",
        "run --password-file p x -- true",
        "lock x",
        "unlock x",
        "unlock x --token-file nowhere",
        "evict x",
        "adopt x",
        "adopt x --ttl 1m",
        "latch",
        "latch wait x",
        "latch down x 0",
        "latch wait x 3 -n",
        "rate x",
        "rate x --per 1m --max 0",
        "rate x --per 1ms --max 1",
        "rate x --per 1m --max 3 --weight 4",
        "rate x --per 1m --max 3 --weight 0",
        "rate x --per 1m --max 3 --burst 2",
        "rate x --per 1m --max 3 --algorithm gcra --weight 2",
        "rate x --per 1m --max 3 --algorithm gcra --burst 0",
        "rate x --per 1m --max 3 --algorithm leaky",
        "rate x --per 1m --max 3 -- ''",
        "rate x --per 1m --max 3 -n -w 1",
        "rate x --per 1m --max 3 -- no_such_program",
        "ls --output yaml",
        "--output json lock x",
        "ls --store redis://127.0.0.1:1/?prefx=team:",
        "ls --store file:/x?shared=some",
        "ls --store file:?shared=all",
        "ls --store file:~alice/x",
        "--color sometimes ls",
        "man nowhere/at/all",
        "__exec",
    ] {
        page.run(&home, line);
    }
    home.write("token", "not a token");
    page.run(&home, "unlock x --token-file token");

    page.chapter("what cannot be run");
    home.write("not_executable", "text");
    for program in ["no_such_program", "./not_executable", "/"] {
        page.run(&home, &format!("run x -- {program}"));
    }

    page.chapter("settings");
    for text in ["store = 7", "stroe = \"file:\"", "store = \"redis://:secret@host", "store = \"gopher:x\""] {
        home.write("leasehold.toml", text);
        page.0 += &format!("\n# ./leasehold.toml: {text}\n");
        page.run(&home, "ls");
    }
    std::fs::remove_file(home.path().join("leasehold.toml")).unwrap();
    let elsewhere = |page: &mut Page, name: &str, value: &str| {
        page.0 += &format!("\n# {name}={value}\n");
        page.note(&home, "ls", said(home.leasehold().arg("ls").env(name, value)));
    };
    elsewhere(&mut page, "LEASEHOLD_STORE", "nonsense");
    elsewhere(&mut page, "HOME", "");

    page.chapter("stores that cannot be used");
    home.write("a_file", "");
    home.write("open_to_all/x", "");
    std::fs::set_permissions(home.path().join("open_to_all"), std::fs::Permissions::from_mode(0o777))
        .unwrap();
    home.write("damaged/locks.db", &"not a database".repeat(1_000));
    std::fs::set_permissions(home.path().join("damaged"), std::fs::Permissions::from_mode(0o700)).unwrap();
    for url in [
        "nowhere",
        "gopher:x",
        "file://far/away",
        "file:a_file",
        "file:open_to_all",
        "file:damaged",
        "file:/proc/no",
    ] {
        page.run(&home, &format!("run --store {url} x -- true"));
    }
    let absolute = |name: &str| format!("file:{}", home.path().join(name).display());
    std::fs::create_dir(home.path().join("sticky")).unwrap();
    std::fs::set_permissions(home.path().join("sticky"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    for (name, shared) in
        [("none", "?shared=group"), ("none", "?shared=all"), ("sticky", "?shared=all"), ("sticky", "")]
    {
        let line = format!("run --store {}{shared} x -- true", absolute(name));
        let ran = said(home.leasehold().args(words(&line)));
        page.note(&home, &general(&home, &line), ran);
    }
    elsewhere(&mut page, "LEASEHOLD_STORE", "file:here");
    elsewhere(&mut page, "LEASEHOLD_STORE", "withheld:");
    page.run(&home, "--output json run --store nowhere x -- true");
    page.run(&home, "doctor --store file:open_to_all");
    page.run(&home, "doctor --store redis://127.0.0.1:1/");
    page.run(&home, "ls --store redis://127.0.0.1:1/ --password-file nowhere");
    home.write("password", "secret\n");
    std::fs::set_permissions(home.path().join("password"), std::fs::Permissions::from_mode(0o644)).unwrap();
    page.run(&home, "ls --store redis://127.0.0.1:1/ --password-file password");
    page.run(&home, "ls --store redis://:secret@127.0.0.1:1/ --password-file password");
    assert_eq!(home.run("run x -- true").0, 0);
    let gate = File::options().write(true).open(home.store().join("gate")).unwrap();
    gate.lock().unwrap();
    page.0 += "\n# somebody keeps the store busy\n";
    page.run(&home, "run x -- true");
    page.run(&home, "ls");
    drop(gate);

    page.chapter("who holds what");
    page.run(&home, "ls");
    page.run(&home, "inspect x");
    let holder = ready(&home, &["run", "--owner", "anna", "x", "--", "sh", "-c", "echo ready; cat"]);
    let readers: Vec<Running> = (0..2)
        .map(|_| ready(&home, &["run", "--owner", "bert", "-s", "y", "--", "sh", "-c", "echo ready; cat"]))
        .collect();
    let permits =
        ready(&home, &["run", "--owner", "cleo", "--permits=3/2", "z", "--", "sh", "-c", "echo ready; cat"]);
    let waiting = home.start(["run", "--owner", "dora", "x", "--", "true"]);
    until(|| home.run("inspect x").1.contains("1. in line"), "a waiter");
    for line in ["ls", "inspect x", "inspect y", "inspect z"] {
        page.run(&home, line);
    }
    for line in [
        "run -n x -- true",
        "run -w 100ms x -- true",
        "run --skip x -- true",
        "--output json run --skip x -- true",
        "ls --limit 1",
        "lock -n x --ttl 5",
        "--output json run -n x -- true",
    ] {
        page.run(&home, line);
    }
    assert_eq!((holder.end().0, waiting.end().0, permits.end().0), (0, 0, 0));
    readers.into_iter().for_each(|reader| assert_eq!(reader.end().0, 0));

    page.chapter("asked before a holder is evicted");
    let holder = ready(&home, &["run", "--owner", "anna", "x", "--", "sh", "-c", "echo ready; cat"]);
    let mut terminal = Terminal::open(&home);
    for name in ["x", "free"] {
        terminal.enter(&format!("leasehold evict {name}"));
        let asked = terminal.see("[y/N] ") + "[y/N] no";
        terminal.press("no\n");
        terminal.see_prompt();
        page.note(&home, &format!("evict {name}"), (terminal.code(), String::new(), asked));
    }
    drop(terminal);
    assert_eq!(holder.end().0, 0);
    let holder = ready(&home, &["run", "--owner", "anna", "x", "--", "sh", "-c", "echo ready; cat"]);
    page.run(&home, "evict --yes x");
    page.run(&home, "evict --yes x");
    assert_eq!(holder.end().0, 79);

    page.chapter("locks of scripts");
    let (code, token, told) = home.run("lock x --ttl 10m --owner anna");
    page.note(&home, "lock x --ttl 10m --owner anna", (code, "TOKEN".to_owned(), told));
    home.write("token", &token);
    for line in [
        "extend x --ttl 10m --token-file token",
        "unlock x --token-file token",
        "unlock x --token-file token",
        "extend x --ttl 5 --token-file token",
    ] {
        page.run(&home, line);
    }

    page.chapter("runs that end badly");
    page.run(&home, "run --max-runtime 100ms x -- sleep 1000");
    // The store forgets it, and tells `run`.
    let mut loses = |title: &str, args: &[&str]| {
        let running = ready(&home, &[&["run"], args].concat());
        assert_eq!(home.run("evict x --yes").0, 0);
        page.0 += "\n# evicted meanwhile\n";
        page.note(&home, &format!("run {title}"), running.end());
    };
    let sleeps = ["x", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    loses("--ttl 2s x -- COMMAND", &[&["--ttl", "2s"], &sleeps[..]].concat());
    loses(
        "--ttl 1s --on-lost signal x -- COMMAND",
        &[&["--ttl", "1s", "--on-lost", "signal"], &sleeps[..]].concat(),
    );
    let naps = ["x", "--", "sh", "-c", "echo ready; sleep 1"];
    loses(
        "--ttl 1s --on-lost continue x -- COMMAND",
        &[&["--ttl", "1s", "--on-lost", "continue"], &naps[..]].concat(),
    );
    // The store forgets it and tells nobody, and `run` finds that at its end.
    let loses = ready(&home, &[&["run", "--ttl", "1h"], &naps[..]].concat());
    let db = rusqlite::Connection::open(home.store().join("locks.db")).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    assert_eq!(db.execute("DELETE FROM holding", []).unwrap(), 1);
    drop(db);
    page.0 += "\n# deleted meanwhile\n";
    page.note(&home, "run --ttl 1h x -- COMMAND", loses.end());
    let hangs = ready(&home, &[&["run", "--ttl", "3s", "-k", "0"], &sleeps[..]].concat());
    let gate = File::options().write(true).open(home.store().join("gate")).unwrap();
    gate.lock().unwrap();
    page.0 += "\n# the store hangs\n";
    page.note(&home, "run --ttl 3s -k 0 x -- COMMAND", hangs.end());
    drop(gate);
    // Between fork and exec it still has the shell's name.
    page.run(&home, "run x -- sh -c 'sleep 0.5 & until grep -q sleep /proc/$!/comm; do :; done; exit 3'");
    page.run(&home, "-v run x -- true");

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/messages.txt");
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        std::fs::write(&path, &page.0).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (now, then)) in page.0.lines().zip(known.lines()).enumerate() {
        assert_eq!(now, then, "line {} of messages.txt (LEASEHOLD_BLESS=1 writes it anew)", number + 1);
    }
    assert_eq!(
        page.0.lines().count(),
        known.lines().count(),
        "messages.txt (LEASEHOLD_BLESS=1 writes it anew)"
    );
}
