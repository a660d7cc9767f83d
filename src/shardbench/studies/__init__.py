"""What a paper's table needs beside trials: studies, contests, claims."""
