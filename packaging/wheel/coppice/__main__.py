from coppice import main

main()
