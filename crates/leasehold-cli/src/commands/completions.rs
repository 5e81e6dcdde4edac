//! `completions` and `man`: print completion scripts and manual pages.

use clap::CommandFactory;

use crate::args::{Args, Completions, Man};
use crate::exit::Failure;
use crate::output::print;

pub(crate) fn completions(args: &Completions) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "leasehold", &mut script);
    print(&script)?;
    Ok(0)
}

pub(crate) fn man(args: &Man) -> Result<u8, Failure> {
    let command = Args::command();
    match &args.directory {
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
