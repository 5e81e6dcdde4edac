//! `completions` and `man`: print completion scripts and manual pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::Failure;
use crate::output::print;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut script);
    print(&script)?;
    Ok(0)
}

pub(crate) fn man(directory: Option<&Path>) -> Result<u8, Failure> {
    let command = Args::command();
    match directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).map_err(Failure::internal)?;
            print(&page)?;
        }
        Some(directory) => clap_mangen::generate_to(command, directory).map_err(|error| {
            Failure::usage(format!(
                "no pages were written into `{}`: {error}; name a directory that is there",
                directory.display()
            ))
        })?,
    }
    Ok(0)
}
