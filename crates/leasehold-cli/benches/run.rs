//! `leasehold run x -- true` beside `flock x true`: wall time, as ratios of medians of interleaved runs, with their spread;
//! and what it is made of. Absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 15;
const EACH: u32 = 40;

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let name = "leasehold run beside flock";
    if !filter.is_empty() && !filter.iter().any(|word| name.contains(word.as_str())) {
        return;
    }
    let home = Home::new();
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    let commands: [(&str, Vec<&str>); 6] = [
        ("`flock x true`", vec!["flock", "x", "true"]),
        ("`leasehold run x -- true`", vec![leasehold, "run", "x", "--", "true"]),
        ("a bare `true`", vec!["true"]),
        ("a shell in between: `sh -c 'true; :'`", vec!["sh", "-c", "/bin/true; :"]),
        ("leasehold's own start: `leasehold --version`", vec![leasehold, "--version"]),
        ("with a store opened and closed: `leasehold inspect y`", vec![leasehold, "inspect", "y"]),
    ];
    let run = |args: &[&str]| {
        let mut command = Command::new(args[0]);
        command.args(&args[1..]).env("HOME", &home.0).current_dir(&home.0);
        assert!(command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap().success(), "{args:?}");
    };
    let time = |args: &[&str]| {
        let start = Instant::now();
        (0..EACH).for_each(|_| run(args));
        start.elapsed().as_secs_f64() * 1e3 / f64::from(EACH)
    };
    commands.iter().for_each(|(_, args)| run(args));
    let rounds: Vec<Vec<f64>> =
        (0..ROUNDS).map(|_| commands.iter().map(|(_, args)| time(args)).collect()).collect();
    println!("\n| one process that runs another under a lock | ms | ratio | spread |\n|---|---|---|---|");
    for (i, (what, _)) in commands.iter().enumerate() {
        let ms: Vec<f64> = rounds.iter().map(|round| round[i]).collect();
        let ratios: Vec<f64> = rounds.iter().map(|round| round[i] / round[0]).collect();
        println!("| {what} | {:.2} | {:.2} | {} |", median(&ms), median(&ratios), spread(&ratios));
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{least:.2} to {most:.2}")
}

/// A directory that is gone at the end.
struct Home(PathBuf);

impl Home {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench_run_{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Home(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
