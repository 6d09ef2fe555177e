import os from 'node:os';

await null;

export const handler = async () => typeof os.EOL;
