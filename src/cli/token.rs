//! `umawarden token`: tokens for access over the network.

use anyhow::{Context as _, anyhow};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::Exit;
use super::control::until;
use crate::access::create_token;
use crate::cli::output::outln;
use crate::exports::access_table;
use crate::model::Role;

/// Arguments of `umawarden token`.
#[derive(Debug, Args)]
pub struct TokenArguments {
    #[command(subcommand)]
    what: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token, and its entry for the file of --web.tokens.file.
    Create(CreateArguments),
}

/// Arguments of `umawarden token create`.
#[derive(Debug, Args)]
#[command(after_help = help())]
struct CreateArguments {
    /// Its name in the journal: 1 to 64 letters, digits and -._@.
    #[arg(long, value_name = "NAME")]
    name: String,

    /// The highest role that it grants.
    #[arg(long, value_parser = PossibleValuesParser::new(Role::NAMES))]
    role: String,

    /// The end of its validity: 2027-01-01T00:00 (UTC), RFC 3339, or seconds since 1970 [default:
    /// never].
    #[arg(long, value_name = "TIME", value_parser = until)]
    expires: Option<Timestamp>,

    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// The roles, from the table of routes.
fn help() -> String {
    let mut help = "\
The token is printed once and stored nowhere: its owner sends it as `Authorization: Bearer \
TOKEN`. The file has only its hash:

  umawarden token create --name alertmanager --role operate

The file is a list of such entries, and of these, for clients with a certificate or password:

  - certificate: spark-2.example   # a name in a verified client certificate
    role: operate
  - user: alice                    # of basic_auth_users
    role: remedy

Each may have `expires: 2027-01-01T00:00:00Z`; a token may have `token_file: FILE` for its hash. \
The file must not be readable by everybody, and writable by its owner alone: chmod 600.

Roles that requests over the network need; remedy includes operate, and that read:

"
    .to_owned();
    for (method, path, access) in access_table().filter(|(_, _, access)| *access != "read") {
        help += &format!("  {access:8} {method} {path}\n");
    }
    help += "  read     everything else; anybody, unless the web configuration has users\n\n\
             Exit codes: 0 made, 2 it cannot be made.";
    help
}

/// Runs the command.
pub fn execute(arguments: &TokenArguments) -> anyhow::Result<Exit> {
    let TokenCommand::Create(arguments) = &arguments.what;
    let role = Role::named(&arguments.role).context("no such role")?;
    let token = create_token(&arguments.name, role, arguments.expires);
    let token = token.map_err(|why| anyhow!("no token was made: {why}"))?;
    if arguments.json {
        let mut object = json!({
            "name": token.name,
            "role": role.name(),
            "token": token.token,
            "sha256": token.sha256,
        });
        if let Some(expires) = token.expires {
            object["expires"] = expires.to_string().into();
        }
        outln!("{object}");
    } else {
        outln!("The token, which is not stored anywhere:\n\n  {}\n", token.token);
        outln!("For the file of --web.tokens.file:\n\n{}", token.entry());
    }
    Ok(Exit::Fine)
}
