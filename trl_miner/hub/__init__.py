"""What a run says of itself (`record`), the folder that is published (`folder`), and its way to the Hub: `upload`, and
`training` for a run that pushes while it trains."""
